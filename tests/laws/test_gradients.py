"""Gradients: finite everywhere, and every parameter gets one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer import Attention, Embed, Feed, Head, Learned, Mixer, Norm, Position, Relative, Rope, Stack, preset
from tests.laws.nets import EXACT, around, build, gap, inputs, language, looking, model, pair, tokens
from tests.laws.parts import every, named, of_images

GIVEN = tokens(2, 8)
IMAGE = named(Embed)["patches"]


def untouched(net: nn.Module, *given: Any, **options: Any) -> list[str]:
    """Names of the parameters whose gradient is missing or zero after one backward pass; asserts finite ones."""
    net.train()
    out = net(*given, **options)
    answers = [
        x for x in (out.logits, out.pooled, out.boxes, out.patches, out.transitions, out.hidden) if x is not None
    ]
    weights = [torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64) for x in answers]
    sum((x * w).sum() for x, w in zip(answers, weights, strict=True)).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
    learned = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    return [name for name, p in learned if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("part", every(Norm, Position, Relative, Mixer, Feed))
def test_a_gradient_reaches_every_parameter_of_a_block(part: Any) -> None:
    if of_images(part):
        assert untouched(build(model(embed=IMAGE.replace(position=part), causal=False)), *inputs(IMAGE)) == []
        return
    slot = next(s for s in (Norm, Position, Relative, Mixer, Feed) if isinstance(part, s))
    settings = {slot.__name__.lower(): part}
    if isinstance(part, Mixer) and part.needs_grid:
        net = build(around(part))
        assert untouched(net, *inputs(net.spec.embed)) == []
        return
    options = looking(part) if isinstance(part, Mixer) else {}
    for causal in (True, False) if not isinstance(part, Mixer) or part.causal_form else (False,):
        for place in ("pre", "post", "sandwich"):
            net = build(language(causal=causal, place=place, layer_scale=0.3, **settings))
            assert untouched(net, GIVEN, **options) == []
    # Control: a parameter that takes no part is found.
    net.spare = nn.Parameter(torch.ones(3, dtype=torch.float64))
    assert untouched(net, GIVEN, **options) == ["spare"]


@pytest.mark.parametrize("embed", every(Embed))
def test_a_gradient_reaches_every_parameter_of_an_embedding(embed: Embed) -> None:
    net = build(model(embed=embed, causal=False))
    given = inputs(embed, batch=4)
    if "missing" in embed.settings() and embed.missing:  # the vectors of missing values need missing values
        numbers, kinds = given
        given = (None if numbers is None else numbers.masked_fill(numbers > 0.5, torch.nan), kinds)
    assert untouched(net, *given) == []


@pytest.mark.parametrize("head", every(Head))
def test_a_gradient_reaches_every_parameter_of_a_head(head: Head) -> None:
    assert untouched(build(model(head=head, causal=False)), GIVEN) == []


def test_a_gradient_reaches_every_parameter_of_a_pair() -> None:
    for share in ("table", "none"):
        assert untouched(build(pair(position=Learned(24), share=share)), tokens(2, 5), GIVEN) == []


@pytest.mark.quick
def test_a_gradient_reaches_the_first_layer_from_a_deep_stack() -> None:
    """Residual sums carry it; without them and without norms it fades."""
    deep = build(model(depth=24, causal=False), torch.float32)
    faded = build(model(depth=24, causal=False, residual=False, init="bert"), torch.float32)
    sizes = []
    for net in (deep, faded):
        net(GIVEN).hidden.square().mean().backward()
        sizes.append(net.stack.blocks[0].mixer.qkv.weight.grad.norm().item())
    assert sizes[0] > 1e-3 and sizes[0] > 100 * sizes[1]


def loss_of(net: Any, given: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(given).logits.flatten(0, 1), given.roll(1, 1).flatten())


def kept_by(net: Any, given: Tensor) -> tuple[Tensor, int]:
    """The loss, and how many numbers autograd keeps for it."""
    sizes = []

    def keep(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    torch.manual_seed(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        return loss_of(net, given), sum(sizes)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_gives_the_same_loss_and_gradients(dropout: float) -> None:
    settings = {"relative": Rope(), "dropout": dropout, "mixer": Attention(heads=4, dropout=dropout)}
    plain = build(language(**settings)).train()
    again = build(language(**settings, stack={"recompute": True})).train()
    (loss, much), (same, little) = kept_by(plain, GIVEN), kept_by(again, GIVEN)
    loss.backward()
    same.backward()
    assert loss.item() == same.item()
    for (name, p), q in zip(plain.named_parameters(), again.parameters(), strict=True):
        assert gap(p.grad, q.grad) < EXACT, name
    assert little < much / 2  # control: it does keep less


@pytest.mark.parametrize(("groups", "share"), [(1, "all"), (2, "all"), (1, "attention"), (2, "feed")])
def test_the_gradient_of_a_shared_weight_is_the_sum_over_its_layers(groups: int, share: str) -> None:
    shared = build(language(depth=4, stack={"groups": groups, "share": share}))
    unrolled = build(language(depth=4))
    copy_unrolled(shared, unrolled, groups, share)
    assert gap(shared(GIVEN).logits, unrolled(GIVEN).logits) < EXACT
    for net in (shared, unrolled):
        loss_of(net, GIVEN).backward()
    per_group = 4 // groups
    part = "feed.up" if share == "feed" else "mixer.qkv"
    blocks = [layer.get_submodule(part).weight.grad for layer in unrolled.stack.blocks]
    for group in range(groups):
        first = shared.stack.blocks[group if share == "all" else group * per_group]
        owner = first.get_submodule(part.split(".")[0])
        got = getattr(owner, part.split(".")[1]).weight.grad
        copies = blocks[group * per_group : (group + 1) * per_group]
        assert gap(got, torch.stack(copies).sum(0)) < EXACT
        assert gap(got, copies[0]) > 1e-6  # control: one copy's alone is not it


def copy_unrolled(shared: Any, unrolled: Any, groups: int, share: str) -> None:
    """Give each layer of the unrolled model the weights that layer uses in the shared one."""
    stack: Stack = shared.spec.stack
    for i, layer in enumerate(unrolled.stack.blocks):
        source = shared.stack.blocks[shared.stack.order[i]]
        layer.load_state_dict({**source.state_dict(), **sublayers(source, stack)})
    rest = {k: v for k, v in shared.state_dict().items() if not k.startswith("stack.blocks")}
    unrolled.load_state_dict(rest, strict=False)


def sublayers(source: Any, stack: Stack) -> dict[str, Tensor]:
    """What a layer borrows is not among its own entries."""
    names = {"all": (), "attention": ("mixer",), "feed": ("feed",)}[stack.share]
    return {f"{name}.{k}": v for name in names for k, v in getattr(source, name).state_dict().items()}


def test_nothing_is_registered_or_stored_twice() -> None:
    """A weight that two places use has one owner: safetensors, sharding and counting all rely on it."""
    specs = [preset(name) for name in ("gpt2-tiny", "t5-small-tiny", "bart-base-tiny", "albert-base-tiny")]
    specs += [model(embed=embed, causal=False) for embed in named(Embed).values()]
    specs += [language(depth=4, stack={"groups": 2, "share": share}) for share in ("all", "attention", "feed")]
    for spec in specs:
        state = spec.build(seed=0).state_dict()
        places = [tensor.data_ptr() for tensor in state.values() if tensor.numel()]
        assert len(places) == len(set(places)), [k for k in state if places.count(state[k].data_ptr()) > 1]
    net = language().build(seed=0)
    net.again = net.embed  # control
    places = [tensor.data_ptr() for tensor in net.state_dict().values()]
    assert len(places) > len(set(places))


def test_a_tied_head_stores_one_tensor() -> None:
    tied, untied = language().build(seed=0), model(head=named(Head)["lm-untied"]).build(seed=0)
    assert [k for k in tied.state_dict() if k.startswith("head")] == []
    assert [k for k in untied.state_dict() if k.startswith("head")] == ["head.weight"]
    count = [sum(p.numel() for p in net.parameters()) for net in (tied, untied)]
    assert count[1] - count[0] == 17 * 16
    tied(GIVEN).logits.sum().backward()
    used = set(GIVEN.flatten().tolist())
    unused = [v for v in range(17) if v not in used]
    assert unused and tied.embed.table.weight.grad[unused].any()  # as the head's rows they have gradients too

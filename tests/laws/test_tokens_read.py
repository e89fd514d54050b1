"""A head that reads some tokens gets those alone: the last block computes no others, and the answer is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import (
    Cross,
    Distilled,
    Embed,
    Experts,
    Head,
    Mixer,
    Model,
    Patches,
    Pooled,
    Regress,
    Relative,
    preset,
)
from anyformer.core.attend import Scores
from anyformer.core.context import FIRST, take
from anyformer.inspection.maps import attention_maps
from tests.laws.nets import EXACT, build, gap, inputs, memory, model, tokens
from tests.laws.parts import HEADS, WIDTH, every

GIVEN = tokens(3, 9)
LEFT, RIGHT = (torch.ones(3, 9, dtype=torch.bool) for _ in range(2))
LEFT[1, :3], LEFT[2, :8], RIGHT[0, 5:], RIGHT[2, 1:] = False, False, False, False
RULE = torch.rand(3, 1, 9, 9, generator=torch.Generator().manual_seed(0)) > 0.4
PACKED = torch.tensor([[0] * 4 + [1] * 5, [0] * 9, [0, 1, 1, 2, 2, 2, 2, 3, 3]])
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "left": {"mask": LEFT}, "right": {"mask": RIGHT}, "rule": {"mask": (RIGHT, RULE)},
    "bias": {"mask": RULE.double()}, "documents": {"documents": PACKED},
    "positions": {"positions": torch.arange(9)[None] * 2},
}  # fmt: skip
HEADS_OF_SOME: list[Head] = [
    Pooled(classes=3), Pooled(classes=3, pool="last"), Pooled(classes=3, pool="token"),
    Pooled(classes=3, pool="token", token=4, dense=True, act="tanh"), Regress(outputs=2), Distilled(classes=3),
]  # fmt: skip


def whole_answer(net: Any, given: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """The logits by way of all tokens."""
    out = net.before_head(*given, **options)
    return net.head(out.hidden, out.context, net.table()).logits


def gradients(net: Any, logits: Tensor) -> list[Tensor]:
    scores = torch.arange(1, logits.numel() + 1, dtype=logits.dtype).view_as(logits)
    learned = [p for p in net.parameters() if p.requires_grad]
    found = torch.autograd.grad((logits * scores).sum(), learned, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, learned, strict=True)]


def check_equal(spec: Model, given: tuple[Any, ...], options: dict[str, Any]) -> None:
    net = build(spec).train()
    assert net.skips_tokens
    length = net.before_head(*given, **options).hidden.shape[1]
    out, wanted = net(*given, **options), whole_answer(net, given, options)
    assert out.hidden.shape[1] < length  # it is not the whole pass again
    assert gap(out.logits, wanted) < EXACT
    for mine, theirs in zip(gradients(net, out.logits), gradients(net, wanted), strict=True):
        assert gap(mine, theirs) < EXACT


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "both-ways"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("head", HEADS_OF_SOME, ids=repr)
def test_some_tokens_are_those_of_the_whole_pass(head: Head, options: dict[str, Any], causal: bool) -> None:
    check_equal(model(head=head, causal=causal), (GIVEN,), options)


@pytest.mark.parametrize("mixer", [m for m in every(Mixer) if m.values[0].supports_token_subset])
@pytest.mark.parametrize("options", [{}, {"mask": RIGHT}], ids=["plain", "right"])
def test_with_every_mixer_that_can(mixer: Mixer, options: dict[str, Any]) -> None:
    for pool in ("first", "last"):
        check_equal(model(head=Pooled(classes=3, pool=pool), mixer=mixer, causal=True), (GIVEN,), options)


@pytest.mark.parametrize("relative", every(Relative))
def test_with_every_relative_position(relative: Relative) -> None:
    for pool in ("first", "last"):
        check_equal(model(head=Pooled(classes=3, pool=pool), relative=relative, causal=False), (GIVEN,), {})
        check_equal(model(head=Pooled(classes=3, pool=pool), relative=relative), (GIVEN,), {"mask": LEFT})


@pytest.mark.parametrize("embed", every(Embed))
def test_with_every_embedding(embed: Embed) -> None:
    given = inputs(embed, batch=2, length=6)
    check_equal(model(embed=embed, head=Pooled(classes=3), causal=False), given, {})


BLOCKS: dict[str, dict[str, Any]] = {
    "post": {"place": "post"}, "sandwich": {"place": "sandwich"}, "parallel": {"order": "parallel"},
    "no feed": {"feed": None}, "scaled": {"layer_scale": 0.3}, "no residual": {"residual": False},
    "one group": {"stack": {"groups": 1}}, "prefix": {"causal": "prefix_lm"}, "one layer": {"depth": 1},
}  # fmt: skip


@pytest.mark.parametrize("settings", BLOCKS.values(), ids=BLOCKS)
def test_with_every_form_of_block(settings: dict[str, Any]) -> None:
    for options in ({}, {"mask": LEFT}):
        check_equal(model(head=Pooled(classes=3), **settings), (GIVEN,), options)


def test_with_cross_attention() -> None:
    spec = model(head=Pooled(classes=3), cross=Cross(heads=HEADS), causal=False)
    check_equal(spec, (GIVEN,), {"memory": memory(3, width=WIDTH)})


def test_class_tokens_before_a_grid() -> None:
    embed = Patches(size=8, patch=4, channels=2, distill=True)
    for head in (Pooled(classes=3, pool="lead"), Distilled(classes=3)):
        check_equal(model(embed=embed, head=head, causal=False), inputs(embed, batch=2, length=6), {})


def test_recomputed_activations_give_the_same_gradients() -> None:
    spec = model(head=Pooled(classes=3), causal=False)
    nets = [build(each).train() for each in (spec, spec.replace(stack=spec.stack.replace(recompute=True)))]
    mine, theirs = (gradients(net, net(GIVEN, mask=RIGHT).logits) for net in nets)
    assert all(gap(a, b) < EXACT for a, b in zip(mine, theirs, strict=True))


def test_control_another_token_or_another_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = build(model(head=Pooled(classes=3), causal=True)).train()
    wanted = whole_answer(net, (GIVEN,), {})
    monkeypatch.setattr(net.head, "tokens_read", lambda context: slice(1, 2))
    assert gap(net(GIVEN).logits, wanted) > 1e-2

    for_subset = Scores.for_subset
    monkeypatch.setattr(net.head, "tokens_read", lambda context: FIRST)
    monkeypatch.setattr(Scores, "for_subset", lambda scores, some: replace(for_subset(scores, some), some=False))
    assert gap(net(GIVEN).logits, wanted) > 1e-2  # the first token, taken for the newest, sees the future


def test_the_last_block_computes_no_other_token() -> None:
    net = build(preset("ft-transformer-tiny")).train()
    seen: list[int] = []
    for layer in net.stack.blocks:
        layer.feed.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
    given = torch.randn(4, 8, dtype=torch.float64)
    net(given)
    assert seen == [9] * (len(net.stack.blocks) - 1) + [1]
    seen.clear()
    net(given, layers=True)  # who asks for hidden states gets them all
    assert seen == [9] * len(net.stack.blocks)


@pytest.mark.parametrize("head", [Pooled(classes=3, pool="mean"), Pooled(classes=3, pool="max"), Pooled(), None])
def test_heads_that_read_all_get_all(head: Head | None) -> None:
    net = build(model(head=head, causal=False)).train()
    assert not net.skips_tokens and net(GIVEN).hidden.shape[1] == 9


def test_losses_over_all_tokens_need_all_tokens() -> None:
    net = build(model(head=Pooled(classes=3), feed=Experts(count=3, width=6), causal=False)).train().train()
    out = net(GIVEN)
    assert out.hidden.shape[1] == 9
    assert gap(out.losses["balance"], net.before_head(GIVEN).losses["balance"]) == 0.0


def test_attention_maps_show_every_token() -> None:
    net = build(model(head=Pooled(classes=3), causal=False)).train()
    shapes = {tuple(one.shape) for calls in attention_maps(net, GIVEN, mask=RIGHT).values() for one in calls}
    assert shapes == {(3, HEADS, 9, 9)}


def test_taken_tokens() -> None:
    x = torch.arange(2 * 3 * 5).view(2, 3, 5)
    places = torch.tensor([[4, 0], [2, 2]])
    wanted = torch.stack([x[row][:, places[row]] for row in range(2)])
    assert torch.equal(take(x, places, 2), wanted)
    assert torch.equal(take(x[:1], places, 2), torch.stack([x[0][:, row] for row in places]))  # one row for all
    assert torch.equal(take(x, slice(-1, None)), x[:, -1:])

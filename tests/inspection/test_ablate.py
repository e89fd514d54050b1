"""Leaving parts out gives what a network without them gives, and leaves nothing behind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from anyformer import (
    LM,
    Alibi,
    Attention,
    Block,
    Hyena,
    Learned,
    Model,
    Stack,
    Tokens,
    UserError,
    compiled,
    preset,
    quantise,
)
from anyformer.core.head_names import HeadName, every_head, find_layer, parse_heads
from anyformer.inspection import ablate as ablating
from anyformer.inspection.ablate import ablate
from tests.inspection.test_every_preset import given

FAMILIES = (
    "gpt2-tiny", "llama3-8b-tiny", "bert-base-tiny", "roberta-base-tiny", "albert-base-tiny", "distilbert-tiny",
    "t5-small-tiny", "bart-base-tiny", "vit-b16-tiny", "bloom-560m-tiny", "mixtral-tiny", "ft-transformer-tiny",
)  # fmt: skip


def built(name: str, seed: int = 0) -> nn.Module:
    """A network whose biases and norms are no longer at their start, so that each of them matters."""
    model = preset(name).build(seed=seed).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    return model


def inputs_of(model: nn.Module) -> tuple[Any, ...]:
    """Something to read, by the kind of network."""
    spec: Any = model.spec
    ids = torch.arange(3, 10)[None]
    if hasattr(spec, "encoder"):
        return ids, ids[:, :5] + 2
    if type(spec.embed).__name__ == "Patches":
        return (torch.randn(1, 3, *spec.embed.pixels, generator=torch.Generator().manual_seed(1)),)
    if type(spec.embed).__name__ == "Table":
        numbers = torch.linspace(-1, 1, spec.embed.numbers)[None]
        return numbers, torch.zeros(1, len(spec.embed.categories or ()), dtype=torch.long)
    return (ids,)


@torch.no_grad()
def hidden(model: nn.Module, *inputs: Any, **options: Any) -> Tensor:
    found: Tensor = model(*inputs, **options).hidden
    return found


def without_columns(model: nn.Module, name: HeadName) -> nn.Module:
    """The reference: a copy whose output projection has zeros where the head comes in."""
    changed = copy.deepcopy(model)
    _, mixer = find_layer(changed, name.layer_name, "test")
    size = mixer.sizes.value_channels
    with torch.no_grad():
        mixer.out.weight[:, name.head * size : (name.head + 1) * size] = 0.0
    return changed


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_left_out_is_a_head_with_zero_columns(family: str) -> None:
    model = built(family)
    inputs = inputs_of(model)
    whole = hidden(model, *inputs)
    heads = every_head(model)
    some = [heads[0], heads[-1], heads[len(heads) // 2]]
    if family == "albert-base-tiny":  # one set of weights serves all layers: see the test of shared blocks
        return check_albert(model, whole, inputs)
    for name in some:
        with ablate(model, heads=[name.short]):
            cut = hidden(model, *inputs)
        assert torch.equal(cut, hidden(without_columns(model, name), *inputs))
        assert not torch.equal(cut, whole)  # control: the head did something
        assert torch.equal(hidden(model, *inputs), whole)  # and is there again


OTHERS = (
    "clip-b32-tiny", "detr-r50-tiny", "electra-small-tiny", "vilbert-base-tiny", "switch-small-tiny",
    "transformer-base-tiny", "sound-mini-tiny", "patchtst-tiny", "vitc-mini-tiny", "captioner-mini-tiny",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_heads_of_other_networks_too(name: str) -> None:
    model = built(name)
    inputs = given(preset(name))
    heads = every_head(model)

    @torch.no_grad()
    def answered(network: nn.Module) -> Tensor:
        out = network(*inputs)
        return out.hidden if out.logits is None else out.logits

    whole = answered(model)
    for one in (heads[0], heads[-1]):
        with ablate(model, heads=[one.short]):
            cut = answered(model)
        assert torch.equal(cut, answered(without_columns(model, one)))
        assert not torch.equal(cut, whole)


def check_albert(model: nn.Module, whole: Tensor, inputs: tuple[Any, ...]) -> None:
    """Layers with the same weights are cut one by one; all of them together are the zero columns."""
    depth = model.spec.stack.depth
    outs = []
    for layer in range(depth):
        with ablate(model, heads=[(layer, 0)]):
            outs.append(hidden(model, *inputs))
    assert all(not torch.equal(out, whole) for out in outs)
    assert not torch.equal(outs[0], outs[1])
    with ablate(model, heads=[(layer, 0) for layer in range(depth)]):
        assert torch.equal(hidden(model, *inputs), hidden(without_columns(model, HeadName("", 0, 0)), *inputs))


def plain(**settings: Any) -> nn.Module:
    block: Any = Block(mixer=Attention(heads=4), **settings.pop("block", {}))
    block = settings.pop("block_of", block)
    spec = Model(
        embed=Tokens(vocab=40, position=Learned(32)),
        stack=Stack(**{"width": 16, "depth": 2, "block": block, "causal": True} | settings),
        head=LM(),
    )
    return spec.build(seed=3).eval()


IDS = torch.tensor([[5, 9, 2, 7, 31, 8]])


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("part", ["feeds", "mixers"])
def test_a_branch_left_out_adds_nothing(part: str, place: str) -> None:
    model = plain(block={"place": place})
    changed = copy.deepcopy(model)
    block = changed.stack.blocks[1]
    last = block.feed.down if part == "feeds" else block.mixer.out
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
    with ablate(model, **{part: [1]}):
        assert torch.equal(hidden(model, IDS), hidden(changed, IDS))
    assert not torch.equal(hidden(model, IDS), hidden(changed, IDS))


@pytest.mark.parametrize("place", ["branch", "sandwich"])
def test_a_branch_with_a_norm_of_its_own_adds_nothing_either(place: str) -> None:
    """A norm at a branch's end would still add its bias: nothing of the branch is left."""
    model = plain(depth=1, block={"place": place}, final=None)
    x = model.embed(IDS, context=model.embed.layout(IDS))
    with torch.no_grad():
        model.stack.blocks[0].around_feed.inside.bias.fill_(2.0)
    with ablate(model, feeds=[0], mixers=[0]), torch.no_grad():
        assert torch.equal(model(IDS).hidden, model.stack.final(x))


def test_edges_and_tokens_are_hidden_before_the_softmax() -> None:
    """The reference is the mask that every caller can give."""
    model = plain()
    rule = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    rule[..., 4, 1] = rule[..., 5, 2] = False
    with ablate(model, edges=[(4, 1), (5, 2)]):
        cut = hidden(model, IDS)
    torch.testing.assert_close(cut, hidden(model, IDS, mask=rule), rtol=0, atol=1e-6)
    assert not torch.allclose(cut, hidden(model, IDS), atol=1e-4)
    rule = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    rule[..., 2] = False
    rule[..., 2, 2] = True
    with ablate(model, tokens=[2]):
        cut = hidden(model, IDS)
    torch.testing.assert_close(cut, hidden(model, IDS, mask=rule), rtol=0, atol=1e-6)
    changed = IDS.clone()
    changed[0, 2] = 11
    with ablate(model, tokens=[2]):  # what the token is does not matter to the others any more
        other = hidden(model, changed)
    torch.testing.assert_close(cut[:, [0, 1, 3, 4, 5]], other[:, [0, 1, 3, 4, 5]], rtol=0, atol=1e-6)
    assert not torch.allclose(hidden(model, changed)[:, 3:], hidden(model, IDS)[:, 3:], atol=1e-4)


def test_an_edge_of_one_head_is_hidden_in_that_head_alone() -> None:
    model = plain(depth=1)
    rule = torch.ones(1, 4, 6, 6, dtype=torch.bool)
    rule[:, 3, 5, 0] = False
    with ablate(model, edges=[(0, 3, 5, 0)]):
        cut = hidden(model, IDS)
    torch.testing.assert_close(cut, hidden(model, IDS, mask=rule), rtol=0, atol=1e-6)
    assert not torch.allclose(cut[:, 5], hidden(model, IDS)[:, 5], atol=1e-5)
    assert torch.equal(cut[:, :5], hidden(model, IDS)[:, :5])


def test_a_token_of_the_encoder_is_hidden_from_the_decoder_too() -> None:
    model = built("bart-base-tiny")
    source, target = inputs_of(model)
    changed = source.clone()
    changed[0, 3] = 20
    with ablate(model, tokens=[("encoder", 3)]):
        one, two = hidden(model, source, target), hidden(model, changed, target)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
    assert not torch.allclose(hidden(model, source, target), hidden(model, changed, target), atol=1e-3)


def test_an_edge_of_cross_attention_against_plain_maths() -> None:
    model = built("bart-base-tiny")
    source, target = inputs_of(model)
    cross = model.decoder.stack.blocks[1].cross
    seen: dict[str, Any] = {}
    hooks = [
        cross.register_forward_pre_hook(lambda _, given: seen.update(x=given[0], memory=given[1].memory)),
        cross.register_forward_hook(lambda module, given, out: seen.update(out=out)),
    ]
    with ablate(model, edges=[("cross", 1, 2, 4, 0)]):
        after = hidden(model, source, target)
    for hook in hooks:
        hook.remove()
    heads, size = cross.sizes.heads, cross.sizes.channels
    q = cross.q(seen["x"]).view(1, -1, heads, size).transpose(1, 2)
    k, v = cross.kv(seen["memory"]).view(1, -1, heads, 2, size).permute(3, 0, 2, 1, 4)
    scores = q @ k.mT / size**0.5
    whole = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    scores[0, 2, 4, 0] = -torch.inf
    expected = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    changed = copy.deepcopy(model)
    changed.decoder.stack.blocks[1].cross.register_forward_hook(lambda *_: cross.out(expected))
    torch.testing.assert_close(after, hidden(changed, source, target), rtol=0, atol=1e-5)
    torch.testing.assert_close(cross.out(whole), seen["out"], rtol=0, atol=1e-5)  # control: the maths is that of cross
    assert not torch.allclose(after, hidden(model, source, target), atol=1e-5)


def test_decoding_step_by_step_hides_the_same_edges() -> None:
    model = plain()
    with ablate(model, edges=[(4, 1)], heads=[(1, 2)], tokens=[0]), torch.no_grad():
        whole = model(IDS).logits
        state = model.state(1)
        steps = [model(IDS[:, i : i + 1], state=state).logits for i in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-5)


def test_everything_is_as_it_was_after_an_exception() -> None:
    model = plain()
    before = hidden(model, IDS)
    with pytest.raises(RuntimeError, match="on purpose"), ablate(model, heads=[(0, 0)], feeds=[1], tokens=[1]):
        raise RuntimeError("on purpose")
    assert torch.equal(hidden(model, IDS), before)
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    assert sum(hooks) == 0


def test_a_network_compiled_in_place_is_cut_all_the_same() -> None:
    model = plain()
    expected = hidden(without_columns(model, HeadName("", 0, 1)), IDS)
    for block in model.stack.blocks:
        block.compile(backend="eager")
    hidden(model, IDS)
    with ablate(model, heads=[(0, 1)]):
        assert torch.equal(hidden(model, IDS), expected)
    assert all(block._compiled_call_impl is not None for block in model.stack.blocks)


def test_code_compiled_around_a_network_is_refused() -> None:
    model = plain()
    for wrapped in (torch.compile(model, backend="eager"), compiled(model)):
        with pytest.raises(UserError, match="give the model that was compiled"), ablate(wrapped, heads=[(0, 0)]):
            pass


def test_weights_in_8_bits_are_cut_too() -> None:
    model = built("gpt2-tiny")
    (ids,) = inputs_of(model)
    exact = hidden(without_columns(model, HeadName("", 1, 0)), ids)
    rounded = quantise(copy.deepcopy(model))
    with ablate(rounded, heads=[(1, 0)]):
        cut = hidden(rounded, ids)
    assert (cut - exact).abs().max() < 0.1 * (hidden(rounded, ids) - cut).abs().max() + 0.05
    assert not torch.equal(cut, hidden(rounded, ids))


@pytest.mark.parametrize(
    "cut, said",
    [
        ({"heads": [(9, 0)]}, "layers are numbered 0 to 1"),
        ({"heads": [(0, 4)]}, "heads 0 to 3"),
        ({"heads": [("encoder", 0, 1)]}, "give the numbers alone"),
        ({"heads": [3]}, r"write \(3, 5\)"),
        ({"feeds": [2]}, "layers are numbered 0 to 1"),
        ({"tokens": [-1]}, "count from 0"),
        ({"edges": [(1, 2, 3)]}, "names nothing"),
    ],
)
def test_what_is_not_there_is_refused(cut: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said), ablate(plain(), **cut):
        pass


def test_an_encoder_decoder_wants_to_know_which_part() -> None:
    with (
        pytest.raises(UserError, match="'encoder' or 'decoder' or 'cross'"),
        ablate(built("t5-small-tiny"), heads=[(0, 0)]),
    ):
        pass


def test_a_mixer_without_heads_or_weights_says_so() -> None:
    blocks = (Block(mixer=Hyena()), Block(mixer=Attention(heads=2), relative=Alibi()))
    model = plain(block_of=blocks)
    before = hidden(model, IDS)
    with pytest.raises(UserError, match="Hyena, which has no heads"), ablate(model, heads=[(0, 0)]):
        pass
    with pytest.raises(UserError, match="Hyena in layer 0"), ablate(model, tokens=[1]):
        pass
    with ablate(model, mixers=[0], heads=[(1, 1)]):
        assert not torch.equal(hidden(model, IDS), before)
    assert torch.equal(hidden(model, IDS), before)


def test_heads_are_written_as_they_are_printed() -> None:
    assert parse_heads("3.1,encoder.5.0, cross.2.7", "--x") == [(3, 1), ("encoder", 5, 0), ("cross", 2, 7)]
    assert [str(HeadName(*words)) for words in (("", 3, 1), ("encoder", 5, 0))] == ["3.1", "encoder.5.0"]
    for wrong in ("3", "", "a.b", "1.2.3.4", "3.-1", "encoder.3"):
        with pytest.raises(UserError, match=r"write layer\.head"):
            parse_heads(wrong, "--x")


def test_a_mask_that_would_take_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = plain()
    monkeypatch.setattr(ablating, "PAIRS", 4 * 6 * 6 - 1)
    with ablate(model, edges=[(4, 1)]):
        hidden(model, IDS)
    with pytest.raises(UserError, match="a mask of 4 x 6 x 6"), ablate(model, edges=[(0, 3, 4, 1)]):
        hidden(model, IDS)

"""Attention maps, rebuilt from what the kernel was given: they equal a naive softmax, and the model runs as it is."""

from __future__ import annotations

import pytest
import torch

from anyformer import (
    AttendingRecurrent,
    Attention,
    Cross,
    LinearAttention,
    Mixer,
    NoRelative,
    Plain,
    Relative,
    Rope,
    UserError,
    attention_maps,
    explain_attention,
)
from anyformer.core.attend import spread
from anyformer.inspection.maps import prepared
from tests.laws.nets import EXACT, build, gap, language, memory, pair, tokens
from tests.laws.parts import every

GIVEN = tokens(2, 7)
ATTENTION = [case for case in every(Mixer) if isinstance(case.values[0], Attention | Cross)]
MASK = torch.ones(2, 7, dtype=torch.bool)
MASK[0, :2] = False


@pytest.mark.quick
@pytest.mark.parametrize("mixer", ATTENTION)
@torch.no_grad()
def test_maps_equal_a_naive_softmax_and_rows_sum_to_one(mixer: Mixer) -> None:
    net = build(language(mixer=mixer))
    options = {"memory": memory(2, width=16)} if mixer.looks_at_memory else {}
    before = net(GIVEN, mask=MASK, **options).logits
    maps = attention_maps(net, GIVEN, mask=MASK, **options)
    given = prepared(net, GIVEN, options={"mask": MASK, **options})
    assert len(maps) == 2
    for path, (weights,) in maps.items():
        (seen,) = given[path]
        logits = seen.q @ spread(seen.k, seen.q.shape[1]).mT * seen.scores.scale
        if seen.scores.soft_cap is not None:
            logits = seen.scores.soft_cap * torch.tanh(logits / seen.scores.soft_cap)
        allowed = naive_rule(mixer, logits.shape[-1])
        wanted = logits.masked_fill(~allowed, -torch.inf).softmax(-1)
        got, wanted = weights.transpose(1, 2)[MASK], wanted.transpose(1, 2)[MASK]  # rows of real tokens
        assert gap(got, wanted) < EXACT
        assert gap(got.sum(-1), torch.ones(1, dtype=torch.float64)) < EXACT
        assert gap(got.roll(1, -1), wanted) > 1e-3  # control
    assert torch.equal(net(GIVEN, mask=MASK, **options).logits, before)  # looking changes nothing
    assert not any(module._forward_pre_hooks for module in net.modules())


def naive_rule(mixer: Mixer, keys: int) -> torch.Tensor:
    if mixer.looks_at_memory:
        return torch.ones(1, 1, 7, keys, dtype=torch.bool)
    i, j = torch.arange(7)[:, None], torch.arange(7)[None]
    allowed = (i >= j) & (i - j < (mixer.window or 99))
    return allowed[None, None] & MASK[:, None, None, :]


@pytest.mark.parametrize("relative", every(Relative))
@torch.no_grad()
def test_maps_times_values_are_what_the_layer_gives(relative: Relative) -> None:
    """The same weights lead to the layer's real output, for every relative position."""
    net = build(language(relative=relative, depth=1))
    seen = prepared(net, GIVEN)["stack.blocks.0.mixer"][0]
    weights = attention_maps(net, GIVEN)["stack.blocks.0.mixer"][0]
    assert gap(weights.sum(-1), torch.ones(1, dtype=torch.float64)) < EXACT
    mixed = weights @ seen.v
    extra = relative.values(weights, seen.scores.tables, seen.scores.query_positions, seen.scores.key_positions)
    mixed = mixed if extra is None else mixed + extra
    outs: list[torch.Tensor] = []
    handle = net.stack.blocks[0].mixer.register_forward_hook(lambda *given: outs.append(given[2]))
    net(GIVEN)
    handle.remove()
    assert gap(net.stack.blocks[0].mixer.out(mixed.transpose(1, 2).flatten(2)), outs[0]) < EXACT


@pytest.mark.parametrize(
    ("mixer", "relative"),
    [
        *(pytest.param(case.values[0], NoRelative(), id=case.id) for case in ATTENTION),
        *(pytest.param(Attention(heads=4), case.values[0], id=case.id) for case in every(Relative)),
        pytest.param(Plain(), NoRelative(), id="plain"),
    ],
)
@torch.no_grad()
def test_maps_over_a_state_are_the_last_rows_of_the_whole_map(mixer: Mixer, relative: Relative) -> None:
    net = build(language(mixer=mixer, relative=relative))
    options = {"memory": memory(2, width=16)} if mixer.looks_at_memory else {}
    whole, state = attention_maps(net, GIVEN, **options), net.state(2)
    for start, stop in ((0, 4), (4, 6), (6, 7)):
        maps = attention_maps(net, GIVEN[:, start:stop], state=state, **options)
        for path, (weights,) in maps.items():
            wanted = whole[path][0][:, :, start:stop]
            keys = weights.shape[-1]  # a window keeps the newest only, and the others have no weight
            seen = wanted.shape[-1] if mixer.looks_at_memory else stop
            assert gap(weights, wanted[..., seen - keys : seen]) < EXACT
            assert gap(wanted[..., : seen - keys], torch.zeros(1, dtype=torch.float64)) == 0.0 or keys == seen
    assert state.length == 7  # the pass was a pass: the state has read the tokens


@torch.no_grad()
def test_what_is_prepared_over_a_state_holds_the_keys_of_the_cache() -> None:
    net, state = build(language(depth=1)), None
    whole = prepared(net, GIVEN)["stack.blocks.0.mixer"][0]
    state = net.state(2)
    net(GIVEN[:, :5], state=state)
    (seen,) = prepared(net, GIVEN[:, 5:], options={"state": state})["stack.blocks.0.mixer"]
    assert gap(seen.k, whole.k) < EXACT and seen.q.shape[2] == 2
    state = net.state(2)
    net(GIVEN[:, :5], state=state)
    assert explain_attention(net, GIVEN[:, 5:], state=state)["stack.blocks.0.mixer"].engine == "sdpa"


@torch.no_grad()
def test_every_kind_of_map_over_a_state_is_right_or_refused() -> None:
    """An alignment goes on over the same memory; sums over features have forgotten their keys."""
    net, options = build(language(mixer=AttendingRecurrent("gru"))), {"memory": memory(2, width=16)}
    whole, state = attention_maps(net, GIVEN, **options), net.state(2)
    net(GIVEN[:, :4], state=state, **options)
    for path, (weights,) in attention_maps(net, GIVEN[:, 4:], state=state, **options).items():
        assert gap(weights, whole[path][0][:, :, 4:]) < EXACT
    sums = build(language(mixer=LinearAttention(heads=4)))
    state = sums.state(2)
    first = attention_maps(sums, GIVEN[:, :4], state=state)  # nothing came before
    assert first["stack.blocks.0.mixer"][0].shape == (2, 4, 4, 4) and state.length == 4
    with pytest.raises(UserError, match="remembers sums"):
        attention_maps(sums, GIVEN[:, 4:], state=state)
    assert state.length == 4  # refused before it ran


def test_a_predictor_is_told_what_to_give() -> None:
    for look in (attention_maps, explain_attention):
        with pytest.raises(UserError, match="predictor.model"):
            look(Unready(), GIVEN)


class Unready:
    """Something with a model inside, as a predictor is."""

    model = None


@torch.no_grad()
def test_rows_may_be_picked_and_shared_layers_are_told_apart() -> None:
    net = build(language(depth=4, stack={"groups": 1}))
    maps = attention_maps(net, GIVEN)
    assert [len(calls) for calls in maps.values()] == [4]  # one set of weights, four layers
    some = attention_maps(net, GIVEN, rows=slice(2, 4))
    for whole, part in zip(maps["stack.blocks.0.mixer"], some["stack.blocks.0.mixer"], strict=True):
        assert gap(whole[:, :, 2:4], part) < EXACT
    two = attention_maps(build(pair(relative=Rope())), tokens(2, 5), GIVEN)
    assert {path.split(".")[-1] for path in two} == {"mixer", "cross"}
    assert two["decoder.stack.blocks.0.cross"][0].shape == (2, 4, 7, 5)


def test_the_kernel_is_named_with_its_reason() -> None:
    plain = explain_attention(build(language(depth=1)), GIVEN)["stack.blocks.0.mixer"]
    capped = explain_attention(build(language(depth=1, mixer=Attention(heads=4, soft_cap=2.0))), GIVEN)
    assert plain.engine == "sdpa" and capped["stack.blocks.0.mixer"].engine == "reference"
    assert "soft cap" in capped["stack.blocks.0.mixer"].why

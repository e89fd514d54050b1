"""The decoding state as a thing: rows reordered, tokens taken back, copies made, bytes counted, overflow refused."""

from __future__ import annotations

import pytest
import torch

from anyformer import Alibi, Attention, Learned, Rope, Shaw, Sinusoid, UserError
from tests.laws.nets import EXACT, build, gap, language, pair, stepwise, tokens

LENGTH = 9
GIVEN = tokens(3, LENGTH)
MIXERS = {
    "mha": Attention(heads=4),
    "gqa": Attention(heads=4, kv_heads=2),
    "window": Attention(heads=4, kv_heads=1, window=3),
}
RELATIVES = {"rope": Rope(), "alibi": Alibi(), "shaw": Shaw(2)}
every_mixer = pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
every_relative = pytest.mark.parametrize("relative", RELATIVES.values(), ids=RELATIVES)


@pytest.mark.parametrize("limit", [None, LENGTH], ids=["growing", "static"])
@every_relative
@every_mixer
@torch.no_grad()
def test_beams_may_be_reordered(mixer: Attention, relative: Rope, limit: int | None) -> None:
    net = build(language(mixer=mixer, relative=relative, position=Sinusoid()))
    state = net.state(3, limit)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, :2] = False
    net(GIVEN[:, :5], mask=mask, state=state)
    rows = torch.tensor([2, 1, 1, 0])  # one row twice
    new = tokens(4, 4, seed=5)
    got = stepwise(net, new, [0, 1, 2, 3], state.select(rows))
    texts = torch.cat([GIVEN[rows, :5], new], 1)
    full = net(texts, mask=torch.cat([mask[rows], torch.ones(4, 4, dtype=torch.bool)], 1)).logits[:, 5:]
    assert gap(got, full) < EXACT
    assert gap(got, full[[0, 1, 3, 2]]) > 1e-3  # control: another order is noticed


@torch.no_grad()
def test_one_text_may_become_many_beams() -> None:
    """With padding, documents and an encoder's memory too, which are then all one row high."""
    mask, many = torch.tensor([[False, True, True, True]]), torch.tensor([0, 0, 0])
    net = build(language(relative=Rope()))
    state = net.state(1)
    net(GIVEN[:1, :4], mask=mask, state=state)
    got = stepwise(net, GIVEN[:, 4:6], [0, 1], state.select(many))
    for row in range(3):
        text = torch.cat([GIVEN[:1, 1:4], GIVEN[row : row + 1, 4:6]], 1)
        assert gap(got[row : row + 1], net(text).logits[:, -2:]) < EXACT
    state = net.state(1)
    net(GIVEN[:1, :4], documents=torch.tensor([[0, 0, 1, 1]]), state=state)
    got = net(GIVEN[:, 4:5], documents=torch.ones(3, 1, dtype=torch.long), state=state.select(many)).logits
    assert gap(got[1], net(torch.cat([GIVEN[:1, 2:4], GIVEN[1:2, 4:5]], 1)).logits[0, -1:]) < EXACT

    two = build(pair(relative=Rope()))
    source, source_mask = tokens(1, 5, seed=2), torch.tensor([[True, True, True, False, False]])
    state = two.state(1)
    two(source, GIVEN[:1, :2], source_mask=source_mask, state=state)
    got = two(None, GIVEN[:, 2:3], state=state.select(many)).logits
    texts = torch.cat([GIVEN[:1, :2].expand(3, -1), GIVEN[:, 2:3]], 1)
    full = two(source.expand(3, -1), texts, source_mask=source_mask.expand(3, -1)).logits[:, -1:]
    assert gap(got, full) < EXACT


@every_relative
@every_mixer
@torch.no_grad()
def test_tokens_may_be_taken_back(mixer: Attention, relative: Rope) -> None:
    net = build(language(mixer=mixer, relative=relative, position=Learned(24)))
    other = tokens(3, 4, seed=8)
    for kept in (7, 5, 1, 0):
        state = net.state(3, rolling=False)
        stepwise(net, GIVEN[:, :7], [0, 5, 6], state)
        state.truncate(kept)
        got = stepwise(net, other, [0, 2, 3], state)
        full = net(torch.cat([GIVEN[:, :kept], other], 1)).logits[:, kept:]
        assert gap(got, full) < EXACT
    state = net.state(3)  # control: nothing taken back
    stepwise(net, GIVEN[:, :7], [0], state)
    assert gap(stepwise(net, other, [0, 2, 3], state), full) > 1e-3
    with pytest.raises(UserError, match="cannot keep 20 of 11 tokens"):
        state.truncate(20)


@torch.no_grad()
def test_what_a_window_dropped_cannot_come_back() -> None:
    net = build(language(mixer=MIXERS["window"]))
    state = net.state(3)
    stepwise(net, GIVEN, [0, 5, 6, 7], state)
    with pytest.raises(UserError, match="rolling=False"):
        state.truncate(4)


@every_mixer
@torch.no_grad()
def test_a_fork_goes_its_own_way(mixer: Attention) -> None:
    net = build(language(mixer=mixer, relative=Rope()))
    state = net.state(3)
    net(GIVEN[:, :5], state=state)
    twin = state.fork()
    stepwise(net, tokens(3, 3, seed=6), [0, 1, 2], twin)
    got = stepwise(net, GIVEN[:, 5:], [0, 1, 2, 3], state)
    assert gap(got, net(GIVEN).logits[:, 5:]) < EXACT
    assert state.length == LENGTH and twin.length == 8
    # Control: without the fork both write into one state.
    same = net.state(3)
    net(GIVEN[:, :5], state=same)
    stepwise(net, tokens(3, 3, seed=6), [0, 1, 2], same)
    assert gap(stepwise(net, GIVEN[:, 5:], [0, 1, 2, 3], same), net(GIVEN).logits[:, 5:]) > 1e-3


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["f64", "f32", "bf16"])
@pytest.mark.parametrize("kv_heads", [8, 4, 2, 1])
@torch.no_grad()
def test_bytes_are_the_formula(kv_heads: int, dtype: torch.dtype) -> None:
    """2 x layers x key/value heads x channels x bytes x tokens x batch: grouped heads shrink it by heads/kv_heads."""
    net = build(language(mixer=Attention(heads=8, kv_heads=kv_heads), depth=3), dtype)
    state = net.state(3)
    assert state.bytes == 0
    for length, piece in ((5, GIVEN[:, :5]), (6, GIVEN[:, 5:6]), (9, GIVEN[:, 6:])):
        net(piece, state=state)
        assert state.bytes == 2 * 3 * kv_heads * (16 // 8) * dtype.itemsize * length * 3
    whole = 2 * 3 * 8 * 2 * dtype.itemsize * 9 * 3
    assert whole / state.bytes == 8 / kv_heads
    state.truncate(4)
    assert state.bytes == 2 * 3 * kv_heads * 2 * dtype.itemsize * 4 * 3


@torch.no_grad()
def test_bytes_with_two_head_sizes_and_with_a_memory() -> None:
    net = build(language(mixer=Attention(heads=4, kv_heads=2, key_size=6, value_size=3), depth=1))
    state = net.state(3)
    net(GIVEN, state=state)
    assert state.bytes == 2 * (6 + 3) * 8 * LENGTH * 3
    two = build(pair())
    state = two.state(3)
    two(tokens(3, 5), GIVEN, state=state)
    assert state.bytes == 2 * (2 * 4 * 4 * 8 * LENGTH * 3) + 2 * (2 * 4 * 4 * 8 * 5 * 3)  # own keys, then the source's


@torch.no_grad()
def test_a_window_keeps_memory_flat() -> None:
    def held(mixer: Attention) -> list[int]:
        net = build(language(mixer=mixer, depth=1))
        state, sizes = net.state(1), []
        for t in range(200):
            net(GIVEN[:1, t % LENGTH, None], state=state)
            sizes.append(state.layers[0].mixer.keys.numel())
        return sizes

    flat, growing = held(Attention(heads=4, window=5)), held(Attention(heads=4))
    assert flat[-1] == flat[10]  # the buffers themselves, not only what is counted
    assert growing[-1] > 2 * growing[10]  # control: without a window they grow


@torch.no_grad()
def test_more_than_the_limit_is_refused_never_wrapped() -> None:
    net = build(language())
    state = net.state(3, limit=6)
    net(GIVEN[:, :6], state=state)
    buffers = [layer.mixer.keys.data_ptr() for layer in state.layers]
    before = state.bytes
    with pytest.raises(UserError, match=r"6 tokens are held and 1 more do not fit a state made for 6.*limit=7"):
        net(GIVEN[:, 6:7], state=state)
    assert state.bytes == before and state.length == 6  # a refused pass leaves no trace
    state.truncate(3)
    assert gap(net(GIVEN[:, 3:6], state=state).logits, net(GIVEN[:, :6]).logits[:, 3:]) < EXACT
    assert buffers == [layer.mixer.keys.data_ptr() for layer in state.layers]  # a static cache stays where it is
    with pytest.raises(UserError, match=r"10 tokens do not fit 9 learned positions"):
        limited = build(language(position=Learned(9)))
        held = limited.state(3)
        limited(GIVEN, state=held)
        limited(GIVEN[:, :1], state=held)


@torch.no_grad()
def test_a_state_serves_the_batch_it_was_made_for() -> None:
    net = build(language())
    with pytest.raises(UserError, match=r"batch"):
        net(GIVEN, state=net.state(2))
    state = net.state(3)
    net(GIVEN, state=state)
    with pytest.raises(UserError, match=r"batch"):
        net(GIVEN[:1, :1], state=state)


def test_only_a_causal_stack_has_a_state() -> None:
    with pytest.raises(UserError, match="causal=True"):
        build(language(causal=False)).state(1)

"""Attention rollout against a few lines of numpy, for every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from anyformer import (
    LM,
    Attention,
    Axial,
    Block,
    Cross,
    Frames,
    Hyena,
    Joint,
    Learned,
    Local,
    LowRank,
    Model,
    Patches,
    Pooled,
    Seq2Seq,
    Stack,
    Table,
    Tokens,
)
from anyformer.errors import UserError
from anyformer.inspection.capture import Capture, look
from anyformer.inspection.rollout import input_axes, merging, output_axis, rollout, without_weakest
from anyformer.presets import preset

WIDTH = 16
Built = tuple[nn.Module, tuple[Any, ...]]


def stack(depth: int = 3, *, causal: bool = False, cross: bool = False, mixer: Any = None) -> Stack:
    block = Block(mixer=Attention(heads=4) if mixer is None else mixer, cross=Cross(heads=4) if cross else None)
    return Stack(width=WIDTH, depth=depth, causal=causal, block=block)


def sharp(model: Any, factor: float = 6.0) -> Any:
    """Fresh attention is nearly even: larger queries and keys give maps that differ by head and layer."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3 if "embed" in name else factor / parameter.shape[1])
    return model


def text() -> Built:
    words = Tokens(vocab=30, position=Learned(12))
    return Model(embed=words, stack=stack(causal=True), head=LM()).build(seed=0), (torch.randint(30, (1, 7)),)


def image() -> Built:
    net = Model(embed=Patches(size=(8, 12), patch=4, registers=1), stack=stack(), head=Pooled(classes=3)).build(seed=0)
    return net, (torch.randn(1, 3, 8, 12),)


def table() -> Built:
    net = Model(embed=Table(numbers=3, categories=(4, 5)), stack=stack(), head=Pooled(classes=2)).build(seed=0)
    return net, (torch.randn(2, 3), torch.randint(4, (2, 2)))


def sound() -> Built:
    embed = Frames(sample_rate=100, frames=12, mels=8, window=0.16, hop=0.04, patch=4, stride=4)
    net = Model(embed=embed, stack=stack(), head=Pooled(classes=2)).build(seed=0)
    return net, (torch.randn(1, 8, 12),)


def image_and_text() -> Built:
    embed = Joint(parts=(Patches(size=8, patch=4), Tokens(vocab=30, position=Learned(9))))
    net = Model(embed=embed, stack=stack(), head=Pooled(classes=2)).build(seed=0)
    return net, (torch.randn(1, 3, 8, 8), torch.randint(30, (1, 5)))


def windows() -> Built:
    net = Model(embed=Tokens(vocab=30), stack=stack(mixer=Local(heads=4, window=2)), head=LM()).build(seed=0)
    return net, (torch.randint(30, (1, 9)),)


def pair() -> Built:
    encoder, decoder = (Model(embed=Tokens(vocab=30), stack=stack(causal=c, cross=c)) for c in (False, True))
    net = Seq2Seq(encoder=encoder, decoder=decoder, head=LM()).build(seed=0)
    return net, (torch.randint(30, (1, 6)), torch.randint(30, (1, 4)))


ONE_STACK = [text, image, table, sound, image_and_text, windows]


def captured(build: Callable[[], Built]) -> Capture:
    torch.manual_seed(1)
    model, inputs = build()
    return look(sharp(model), inputs)


def naive(maps: list[np.ndarray], fuse: str = "mean", residual: float = 0.5) -> np.ndarray:
    """The published recipe: fuse heads, add the identity, normalise rows, multiply from the first layer up."""
    result = np.eye(maps[0].shape[-1])
    for heads in maps:  # (H,T,T)
        mixed = (1 - residual) * getattr(np, fuse)(heads, 0) + residual * np.eye(heads.shape[-1])
        result = (mixed / mixed.sum(-1, keepdims=True)) @ result
    return result


def maps_of(capture: Capture, stack: str = "", kind: str = "self") -> list[np.ndarray]:
    sites = [site for site in capture.sites if site.stack == stack and site.kind == kind]
    return [capture.weights(site.index).double().numpy() for site in sites]


@pytest.mark.parametrize("build", ONE_STACK)
@pytest.mark.parametrize("fuse", ["mean", "max", "min"])
@pytest.mark.parametrize("residual", [0.5, 0.0, 0.2])
def test_rollout_is_the_naive_product(build: Callable[[], Built], fuse: Any, residual: float) -> None:
    capture = captured(build)
    found = capture.rollout(fuse=fuse, residual=residual)
    assert found.numpy() == pytest.approx(naive(maps_of(capture), fuse, residual), abs=1e-12)
    assert found.sum(1).numpy() == pytest.approx(np.ones(len(found)), abs=1e-6)
    turned = naive(maps_of(capture)[::-1], fuse, residual)
    assert found.numpy() != pytest.approx(turned, abs=1e-4)  # control: layers multiplied in the wrong order


@pytest.mark.parametrize("build", ONE_STACK)
def test_a_map_that_is_off_is_noticed(build: Callable[[], Built]) -> None:
    capture = captured(build)
    maps = maps_of(capture)
    maps[1] = maps[1] ** 1.05
    assert capture.rollout().numpy() != pytest.approx(naive(maps), abs=1e-5)


def test_a_residual_of_one_leaves_every_token_itself() -> None:
    assert torch.equal(captured(text).rollout(residual=1.0), torch.eye(7, dtype=torch.float64))


def test_depth_takes_the_first_layers() -> None:
    capture = captured(image)
    for depth in range(4):
        expected = naive(maps_of(capture)[:depth]) if depth else np.eye(8)
        assert capture.rollout(depth=depth).numpy() == pytest.approx(expected, abs=1e-12)


def test_some_rows_are_rows_of_the_whole() -> None:
    capture = captured(image)
    whole = capture.rollout()
    assert torch.allclose(capture.rollout(rows=[0, 5]), whole[[0, 5]], atol=1e-14)
    assert torch.allclose(capture.rollout(rows=[-1]), whole[-1:], atol=1e-14)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captured(pair)
    whole = [capture.rollout(stack=stack) for stack in ("cross", "encoder", "decoder")]
    monkeypatch.setattr("anyformer.inspection.rollout.ENTRIES", 50)
    for stack_, before in zip(("cross", "encoder", "decoder"), whole, strict=True):
        assert torch.allclose(capture.rollout(stack=stack_), before, atol=1e-14)


def test_a_causal_rollout_reads_nothing_from_later() -> None:
    found = captured(text).rollout()
    assert torch.equal(found.triu(1), torch.zeros_like(found)) and float(found[-1, 0]) > 0


# ---------------------------------------------------------------- encoder and decoder


def naive_cross(capture: Capture, residual: float = 0.5) -> np.ndarray:
    """Both sequences as one, source first: every block is then one square matrix."""
    source = naive(maps_of(capture, "encoder"), "mean", residual)
    selves, crosses = maps_of(capture, "decoder"), maps_of(capture, "decoder", "cross")
    wrote, read = selves[0].shape[-1], source.shape[-1]
    result = np.block([[source, np.zeros((read, wrote))], [np.zeros((wrote, read)), np.eye(wrote)]])
    for own, cross in zip(selves, crosses, strict=True):
        step = np.eye(read + wrote)
        step[read:, read:] = (1 - residual) * own.mean(0) + residual * np.eye(wrote)
        result = step @ result
        step = np.eye(read + wrote)
        step[read:, read:] *= residual
        step[read:, :read] = (1 - residual) * cross.mean(0)
        result = step @ result
    part = result[read:, :read]
    return part / part.sum(1, keepdims=True)


@pytest.mark.parametrize("residual", [0.5, 0.0, 0.3])
def test_the_target_is_traced_to_the_source(residual: float) -> None:
    capture = captured(pair)
    found = capture.rollout(residual=residual)
    assert found.shape == (4, 6)
    assert found.numpy() == pytest.approx(naive_cross(capture, residual), abs=1e-8)  # its rows sum to 1 in float32
    assert found.sum(1).numpy() == pytest.approx(np.ones(4), abs=1e-6)
    last = maps_of(capture, "decoder", "cross")[-1].mean(0)
    assert found.numpy() != pytest.approx(last, abs=1e-3)  # control: it is not the last layer's map


def test_each_side_of_a_pair_is_rolled_out_by_itself() -> None:
    capture = captured(pair)
    for side in ("encoder", "decoder"):
        assert capture.rollout(stack=side).numpy() == pytest.approx(naive(maps_of(capture, side)), abs=1e-12)
    assert (input_axes(capture), output_axis(capture)) == (["encoder"], "decoder")


# ---------------------------------------------------------------- pyramids


def test_a_pyramid_is_traced_to_the_finest_patches() -> None:
    torch.manual_seed(1)
    net = preset("pyramid-small-tiny").build(seed=0)
    capture = look(sharp(net), (torch.randn(1, 3, 32, 32),))
    found = capture.rollout()
    maps = maps_of(capture)
    assert [len(one[0]) for one in maps] == [256, 256, 64, 64] and found.shape == (64, 256)
    upper, lower = naive(maps[2:]), naive(maps[:2])
    halves = lower.reshape(8, 2, 8, 2, 256).mean((1, 3)).reshape(64, 256)  # four rows into one
    assert found.numpy() == pytest.approx(upper @ halves, abs=1e-12)
    assert found.sum(1).numpy() == pytest.approx(np.ones(64), abs=1e-6)
    assert upper @ lower[:64] != pytest.approx(found.numpy(), abs=1e-4)  # control: no merge between


def test_an_odd_grid_merges_what_there_is() -> None:
    found = merging((2, 2), (3, 3))
    assert found[0].reshape(3, 3).tolist() == [[0.25, 0.25, 0], [0.25, 0.25, 0], [0, 0, 0]]
    assert found[3].reshape(3, 3)[2, 2] == 1 and found[1].reshape(3, 3)[:, 2].tolist() == [0.5, 0.5, 0]


# ---------------------------------------------------------------- streams that read each other, and axes


def streams() -> Built:
    net = preset("vilbert-base-tiny").build(seed=0)
    return net, (torch.randint(400, (1, 5)), torch.randn(1, 3, 8, 8))


def naive_streams(capture: Capture, residual: float) -> np.ndarray:
    """Both streams as one sequence, text first: every layer is one square matrix, a meeting too."""
    words, patches = 5, 5
    result = np.eye(words + patches)
    first, second = slice(0, words), slice(words, None)
    waiting = None
    for site in capture.sites:
        seen = capture.weights(site.index).double().numpy().mean(0)
        step = np.eye(words + patches)
        own, other = (first, second) if site.stack == "first" else (second, first)
        if site.kind == "self":
            step[own, own] = (1 - residual) * seen + residual * step[own, own]
        else:
            step[own, own] *= residual
            step[own, other] = (1 - residual) * seen
            if waiting is None:
                waiting = step
                continue
            step[first], waiting = waiting[first], None
        result = step @ result
    return result


@pytest.mark.parametrize("residual", [0.5, 0.2, 0.0])
def test_two_streams_are_traced_to_both_inputs(residual: float) -> None:
    capture = captured(streams)
    whole = naive_streams(capture, residual)
    words = capture.rollout(residual=residual)
    assert words.shape == (5, 10) and input_axes(capture) == ["first", "second"]
    assert words.numpy() == pytest.approx(whole[:5], abs=1e-6)
    assert words.sum(1).numpy() == pytest.approx(np.ones(5), abs=1e-6)
    patches = capture.rollout(residual=residual, stack="second", rows=[0, 3])
    assert patches.numpy() == pytest.approx(np.roll(whole, 5, 1)[[5, 8]], abs=1e-6)  # its own tokens come first
    if residual:
        assert words[:, 5:].sum() > 0.1 and words[:, :5].sum() > 0.1  # something came from either side


def test_a_stream_before_the_first_meeting_knows_itself_alone() -> None:
    capture = captured(streams)
    early = capture.rollout(depth=1)
    assert float(early[:, 5:].abs().max()) == 0.0 and float(capture.rollout(depth=2)[:, 5:].max()) > 0


@pytest.mark.parametrize("joined", ["sequence", "sum"])
def test_axial_attention_is_one_layer_of_two_looks(joined: Any) -> None:
    def crossed() -> Built:
        embed = Patches(size=(8, 12), patch=4)
        mixer = Axial(heads=4, span=5, joined=joined)
        return Model(embed=embed, stack=stack(mixer=mixer), head=Pooled(classes=3)).build(seed=0), (
            torch.randn(1, 3, 8, 12),
        )

    capture = captured(crossed)
    maps = [one.mean(0) for one in maps_of(capture)]  # column, row, column, row ...
    assert len(maps) == 6
    pairs = list(zip(maps[::2], maps[1::2], strict=True))
    layers = [(row @ column if joined == "sequence" else (row + column) / 2)[None] for column, row in pairs]
    assert capture.rollout().numpy() == pytest.approx(naive(layers), abs=1e-8)
    assert capture.rollout().numpy() != pytest.approx(naive([one[None] for one in maps]), abs=1e-3)  # control


# ---------------------------------------------------------------- discarding, and what is refused


def test_discard_drops_the_weakest_of_what_is_seen() -> None:
    seen = torch.tensor([[0.0, 0.5, 0.2, 0.3], [0.4, 0.1, 0.3, 0.2], [0.0, 0.0, 0.0, 1.0]])
    expected = torch.tensor([[0.0, 0.5, 0.0, 0.3], [0.4, 0.0, 0.3, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert torch.equal(without_weakest(seen, 0.5), expected)
    assert without_weakest(seen, 0.9).count_nonzero(1).tolist() == [1, 1, 1]


def test_discard_reaches_the_rollout() -> None:
    capture = captured(image)
    some = [np.where(m.mean(0) >= np.sort(m.mean(0), 1)[:, 4:5], m.mean(0), 0)[None] for m in maps_of(capture)]
    found = capture.rollout(discard=0.5)  # four of eight tokens
    assert found.numpy() == pytest.approx(naive(some), abs=1e-12)
    assert found.sum(1).numpy() == pytest.approx(np.ones(8), abs=1e-6)
    assert found.numpy() != pytest.approx(capture.rollout().numpy(), abs=1e-3)


def test_a_token_that_sees_nothing_stays_itself() -> None:
    torch.manual_seed(1)
    model, (ids,) = text()
    hidden = torch.ones(1, 7, 7, dtype=torch.bool)
    hidden[0, 3] = False
    capture = look(model, (ids,))
    ruled = look(Ruled(model, hidden), (ids,))
    found = rollout(ruled, residual=0.0)
    assert found.isfinite().all() and found[3].tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert capture.rollout(residual=0.0)[3].tolist() != found[3].tolist()  # control: without the rule it sees others


class Ruled(nn.Module):
    """A network that is always given one mask."""

    def __init__(self, model: nn.Module, mask: torch.Tensor) -> None:
        super().__init__()
        self.model, self.mask = model, mask

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(ids, mask=self.mask)


def test_w25_the_lectures_two_layers() -> None:
    """A = [[.8, .2], [.4, .6]] in both: the identity keeps tokens apart that the maps alone mix away."""
    weights = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
    block = Block(mixer=Attention(heads=1))
    model = Model(embed=Tokens(vocab=5), stack=Stack(width=WIDTH, depth=2, block=block), head=LM()).build(seed=0)
    for layer in model.stack.blocks:
        nn.init.zeros_(layer.mixer.qkv.weight)  # all scores are 0, so the added mask is all there is
    capture = look(Ruled(model, weights.log()[None, None]), (torch.tensor([[1, 2]]),))
    for one in maps_of(capture):
        assert one[0] == pytest.approx(weights.numpy(), abs=1e-6)
    together = np.array([[0.83, 0.17], [0.34, 0.66]])
    assert capture.rollout().numpy() == pytest.approx(together, abs=1e-6)
    assert capture.rollout(residual=0.0).numpy() == pytest.approx(np.array([[0.72, 0.28], [0.56, 0.44]]), abs=1e-6)
    assert capture.rollout(depth=1).numpy() != pytest.approx(together, abs=1e-2)  # control: one layer is not two


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fuse": "sum"}, "heads cannot be fused by 'sum'"),
        ({"residual": 1.5}, r"residual 1.5 is outside \[0, 1\]"),
        ({"discard": 1.0}, r"discard 1.0 is outside \[0, 1\)"),
        ({"depth": 9}, "depth 9 is not in this stack; use 0 to 3"),
        ({"stack": "encoder"}, "no stack 'encoder'"),
        ({"rows": [70]}, "token 70 is out of range"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        captured(text).rollout(**options)


def test_layers_without_weights_are_named() -> None:
    def mixed() -> Built:
        blocks = (Block(mixer=Attention(heads=4)), Block(mixer=Hyena()))
        net = Model(embed=Tokens(vocab=30), stack=Stack(width=WIDTH, depth=2, causal=True, block=blocks), head=LM())
        return net.build(seed=0), (torch.randint(30, (1, 6)),)

    with pytest.raises(UserError, match="Layer 1.* without attention weights; use depth 1 or less"):
        captured(mixed).rollout()
    assert captured(mixed).rollout(depth=1).shape == (6, 6)


def test_keys_that_are_mixtures_are_refused() -> None:
    def low() -> Built:
        mixer = LowRank(heads=4, rank=3, longest=8)
        return Model(embed=Tokens(vocab=30), stack=stack(mixer=mixer), head=LM()).build(seed=0), (
            torch.randint(30, (1, 6)),
        )

    with pytest.raises(UserError, match="3 mixtures, not its 6 tokens"):
        captured(low).rollout()


def test_missing_layers_are_named() -> None:
    model, inputs = text()
    with pytest.raises(UserError, match="layer 0 was not captured"):
        look(model, inputs, layers=[1]).rollout()

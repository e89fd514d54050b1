"""Two claims of the lectures about the untrained network: what 1/sqrt(C) is for, and what residuals are for."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from anyformer import MLP, Attention, Block, LayerNorm, NoNorm, NoRelative, Stack
from anyformer.core.attend import Scores, weights_of
from tests.reference.copying import context_of, shaken

KEYS = 128


def sharpness(channels: int, scale: str) -> tuple[float, float, float, float]:
    """Mean largest weight, mean entropy, share of dead rows and median norm of the softmax's Jacobian.

    2,048 queries over 16 sets of 128 keys, unit normal; a row is dead when the Jacobian's norm is below .01.
    """
    module = Attention(heads=1, key_size=channels, scale=scale).build(8, causal=False, relative=NoRelative())
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(16, 1, KEYS, channels, generator=generator) for _ in range(2))
    p = weights_of(q, k, Scores(scale=module.scale)).flatten(0, 2).double()  # (2048, 128)
    squares = p.square().sum(-1)
    # ||diag(p) - p p'||^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2
    jacobian = (squares - 2 * p.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    return (
        p.amax(-1).mean().item(), entropy.mean().item(), (jacobian < 0.01).double().mean().item(),
        jacobian.median().item(),
    )  # fmt: skip


# Channels, then max p, entropy, dead rows, median of the Jacobian's norm, without scaling.
TABLE = [
    (16, 0.52, 1.6, 0.01, 0.316),
    (64, 0.76, 0.64, 0.16, 0.251),
    (256, 0.88, 0.27, 0.38, 0.053),
    (512, 0.92, None, 0.51, 0.009),
]


@pytest.mark.parametrize(("channels", "largest", "entropy", "dead", "median"), TABLE)
def test_weights_are_sharp_without_the_scale_and_even_with_it(
    channels: int, largest: float, entropy: float | None, dead: float, median: float
) -> None:
    """Bounds are about three standard errors of 2,048 rows that share 16 sets of keys."""
    bare = sharpness(channels, "none")
    assert bare[0] == pytest.approx(largest, abs=0.03)
    assert entropy is None or bare[1] == pytest.approx(entropy, abs=0.1)
    assert bare[2] == pytest.approx(dead, abs=0.04)
    assert bare[3] == pytest.approx(median, abs=0.03)
    scaled = sharpness(channels, "sqrt")
    assert scaled[0] == pytest.approx(0.07, abs=0.01)
    assert scaled[1] == pytest.approx(4.37, abs=0.03) and scaled[1] < math.log(KEYS)
    assert scaled[2] == 0 and scaled[3] == pytest.approx(0.132, abs=0.01)


def test_error_25_sharpness_shows_at_any_size_dead_gradients_only_at_large_ones() -> None:
    small, large = sharpness(16, "none"), sharpness(512, "none")
    assert small[0] > 0.4 and small[2] < 0.05  # sharp, yet almost no dead row
    assert large[2] > 0.4
    assert 1 / KEYS < 0.05 < sharpness(512, "sqrt")[0]  # near-uniform, not uniform


def distance_to_rank_one(x: Tensor) -> float:
    """What of the token matrix (T,D) the best matrix of rank one leaves over."""
    values = torch.linalg.svdvals(x)
    return (values[1:].square().sum() / values.square().sum()).sqrt().item()


def depths(residual: bool, feed: MLP | None, norm: LayerNorm | NoNorm) -> list[float]:
    """The distance after each of 12 layers, from random tokens through random weights."""
    block = Block(mixer=Attention(heads=4, bias=False), feed=feed, norm=norm, residual=residual)
    stack = shaken(Stack(width=32, depth=12, block=block, final=NoNorm()).build())
    x = torch.randn(1, 24, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found, context = [distance_to_rank_one(x[0])], context_of(x)
    with torch.no_grad():
        for layer in stack.blocks:
            x, _ = layer(x, context, None, ())
            found.append(distance_to_rank_one(x[0]))
    return found


@pytest.mark.quick
def test_without_residuals_the_tokens_become_one_and_the_same() -> None:
    """R78: pure attention of rank that collapses with depth (2103.03404); residuals keep it."""
    collapsed = depths(False, None, NoNorm())
    assert collapsed[0] > 0.8 and collapsed[4] < 1e-2 and collapsed[12] < 1e-6
    assert all(later <= earlier for earlier, later in pairwise(collapsed) if earlier > 1e-12)
    kept = depths(True, None, NoNorm())
    assert kept[12] > 0.1


@pytest.mark.quick
def test_norms_and_feeds_do_not_stop_the_collapse_residuals_do() -> None:
    collapsed, kept = (depths(r, MLP(bias=False), LayerNorm(bias=False)) for r in (False, True))
    assert collapsed[12] < 0.05 and kept[12] > 5 * collapsed[12] and kept[12] > 0.2

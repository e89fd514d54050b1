"""Relative positions of Shaw et al. against a double loop, and no T x T x C tensor on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from anyformer import Attention, Shaw
from tests.reference import naive
from tests.reference.copying import agree, context_of, deviation, real_tokens, seeded, shaken
from tests.reference.watching import largest

B, T, D, H = 2, 9, 16, 4


class Layer(torch.nn.Module):
    """A mixer with its own vectors, as a block holds them."""

    def __init__(self, spec: Shaw, causal: bool, width: int = D, **settings: Any) -> None:
        super().__init__()
        mixer = Attention(**({"heads": H} | settings))
        sizes = mixer.sizes(width)
        self.mixer = mixer.build(width, causal=causal, relative=spec)
        self.vectors = spec.build(sizes.heads, sizes.channels, sizes.value_channels, causal)

    def forward(self, x: Tensor, **given: Any) -> Tensor:
        context = context_of(x, **given)
        return self.mixer(x, context, None, self.vectors(context, x.dtype))


def by_hand(layer: Any, x: Tensor, k: int, scale: float, sees: Any, sign: int = 1) -> Tensor:
    """e_ij = q_i (k_j + a^K_ij) * scale, z_i = sum of alpha_ij (v_j + a^V_ij); `sign` -1 is the slide's minus."""
    a_k, a_v = layer.vectors.keys.weight, layer.vectors.values

    def row(i: int, j: int) -> int:
        return max(-k, min(k, j - i)) + k

    return naive.attend(
        x, layer.mixer, scale=scale, sees=sees, key_extra=lambda i, j: a_k[row(i, j)],
        value_extra=None if a_v is None else lambda i, j: sign * a_v.weight[row(i, j)],
    )  # fmt: skip


@pytest.mark.parametrize("k", [1, pytest.param(3, marks=pytest.mark.quick), 16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("values_too", [True, False])
def test_keys_and_values_equal_the_double_loop(k: int, causal: bool, values_too: bool) -> None:
    layer, x = shaken(Layer(Shaw(k, values_too=values_too), causal)), seeded(B, T, D)
    expected = by_hand(layer, x, k, 0.5, lambda b, h, i, j: j <= i or not causal)
    agree(layer(x), expected, [x, *layer.parameters()])
    if values_too:  # control, and error 12 of the lectures: a^V is added, the slide has a minus
        assert deviation(layer(x), by_hand(layer, x, k, 0.5, lambda b, h, i, j: j <= i or not causal, -1)) > 1e-3
    assert deviation(layer(x), by_hand(layer, x, k, 0.51, lambda b, h, i, j: j <= i or not causal)) > 1e-4


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_heads_other_sizes_and_padding_equal_the_double_loop(groups: int) -> None:
    layer = shaken(Layer(Shaw(2), True, kv_heads=groups, key_size=6, value_size=3))
    x, real = seeded(B, T, D), real_tokens((9, 5), T, "left")
    expected = by_hand(layer, x, 2, 6**-0.5, lambda b, h, i, j: j <= i and bool(real[b, j]))
    agree(layer(x, mask=real), expected, [x, *layer.parameters()], where=real[..., None])
    assert deviation(layer(x), expected, where=real[..., None]) > 1e-3


def test_no_tensor_of_length_squared_times_channels_is_made() -> None:
    length, width = 96, 32
    layer = Layer(Shaw(4), False, width=width, heads=2)
    x = torch.randn(1, length, width, requires_grad=True)

    def ours() -> None:
        layer(x).sum().backward()

    def schoolbook() -> None:
        q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for _ in range(3))
        rows = (torch.arange(length) - torch.arange(length)[:, None]).clamp(-4, 4) + 4
        a_k, a_v = layer.vectors.keys.weight[rows], layer.vectors.values.weight[rows]  # (T,T,C)
        weights = (q @ k.mT + torch.einsum("bhtc,tsc->bhts", q, a_k)).softmax(-1)
        (weights @ v + torch.einsum("bhts,tsc->bhtc", weights, a_v)).sum().backward()

    assert largest(ours) <= 2 * length * length  # the weights of two heads
    assert largest(schoolbook) >= 16 * length * length

"""Activation functions by name, and the fused operations that replace them when training on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Act = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu", "relu2", "sigmoid", "tanh"]


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "relu2": relu2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def split_pairs(h: Tensor) -> tuple[Tensor, Tensor]:
    """Gate and value (..., I) from interleaved inner channels (..., 2 I)."""
    if h.device.type == "cpu" and not torch.compiler.is_compiling():
        gate, value = SplitPairs.apply(h)
    else:
        gate, value = h.unflatten(-1, (-1, 2)).unbind(-1)
    return gate, value


class SplitPairs(torch.autograd.Function):
    """Contiguous halves for a CPU: activations on a stride-2 view are slow (SiLU: a sixth of the speed), and
    accumulating the gradients of two strided views is slower still."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> tuple[Tensor, Tensor]:
        pairs = h.unflatten(-1, (-1, 2))
        return pairs[..., 0].contiguous(), pairs[..., 1].contiguous()

    @staticmethod
    def backward(ctx: Any, d_gate: Tensor, d_value: Tensor) -> Tensor:
        d_pairs = d_gate.new_empty(*d_gate.shape, 2)
        d_pairs[..., 0], d_pairs[..., 1] = d_gate, d_value
        return d_pairs.flatten(-2)


FUSED_ACTS = ("gelu", "gelu_tanh", "silu")


class FusedActivation(NamedTuple):
    """Fused operations for training on a GPU in half precision."""

    linear_act: Callable[[Tensor, Tensor, Tensor, str], Tensor]  # input, weight, bias, name of the activation
    gate: Callable[[Tensor, str], Tensor]  # pairs of gate and value (..., 2 I), name of the activation


fused: FusedActivation | None = None  # set once kernels/activation.py has checked that one of them agrees with torch
fused_forms: frozenset[tuple[str, bool]] = frozenset()  # the (activation, gated) pairs that passed that check

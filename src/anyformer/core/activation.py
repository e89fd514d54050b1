"""Activation functions by name, and the operations that take their place where a network trains on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

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


FUSED_ACTS = ("gelu", "gelu_tanh", "silu")


class FusedActivation(NamedTuple):
    """Operations for training on a GPU in half precision."""

    linear_act: Callable[[Tensor, Tensor, Tensor, str], Tensor]  # input, weight, bias, name of the activation
    gate: Callable[[Tensor, str], Tensor]  # pairs of gate and value (..., 2 I), name of the activation


fused: FusedActivation | None = None  # once kernels/activation.py has found that they agree with torch

"""Rows of weights in 8 bits, and products with them."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.core.compiling import Attempt

LARGEST = 127  # of 8 bits with sign; -128 is left out, so that both sides are alike
TOGETHER = 4  # rows of the input that share one reading of the weights
STREAMS = 4  # rows of weights read side by side for one row of the input
FEW = 16  # rows of the input up to which weights are widened as they are read, where the compiler makes the code
PIECE = 4096  # rows of weights widened at once where a copy has to be made


class Int8(NamedTuple):
    """Weights scale * n: whole numbers n from -127 to 127, (N,K), and a scale for each row, (N,)."""

    values: Tensor
    scales: Tensor

    @classmethod
    def of(cls, weight: Tensor) -> Int8:
        """The nearest such weights: none is off by more than half of its row's scale."""
        exact = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        scales = exact.abs().amax(1) / LARGEST
        scales = scales.where(scales > 0, 1.0)  # a row of zeros
        return cls((exact / scales[:, None]).round().to(torch.int8), scales)

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weights themselves, (N,K)."""
        return self.values.to(dtype) * self.scales[:, None].to(dtype)

    def look_up(self, ids: Tensor) -> Tensor:
        """The rows of some ids, (...,K)."""
        return self.values[ids].to(self.scales.dtype) * self.scales[ids][..., None]

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """(...,K) to (...,N), in the precision of x; sums of a few rows are made in float32."""
        rows = x.reshape(-1, x.shape[-1])
        if torch.compiler.is_compiling():
            y = by_reading(rows, *self) if rows.shape[0] <= FEW else by_widening(rows, *self)
        else:
            y = (code_for_one() if rows.shape[0] == 1 and x.device.type == "cpu" else by_widening)(rows, *self)
        y = y if bias is None else y + bias
        return y.to(x.dtype).reshape(*x.shape[:-1], -1)


def by_reading(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Products (M,N) as sums: compiled, every weight is read once, in 8 bits, for each few rows of x (M,K)."""
    x = x.float()
    if x.shape[0] == 1:
        return (one_row(x[0], values) * scales)[None]
    found = []
    for some in x.split(TOGETHER):
        wide = values.float()
        found += [(wide * row).sum(-1) * scales for row in some.unbind()]
    return torch.stack(found)


def one_row(x: Tensor, values: Tensor) -> Tensor:
    """Sums (N,) of several rows of weights side by side: one alone would wait for each of its additions."""
    even = values.shape[0] // STREAMS * STREAMS
    parts = values[:even].unflatten(0, (STREAMS, -1)).unbind()
    rest = [values[even:]] if even < values.shape[0] else []
    return torch.cat([(part.float() * x).sum(-1) for part in (*parts, *rest)])


def by_widening(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Products (M,N) with a wide copy of the weights: plain, and right everywhere."""
    if torch.compiler.is_compiling():
        return F.linear(x, values.to(x.dtype)) * scales.to(x.dtype)
    return torch.cat([F.linear(x, piece.to(x.dtype)) for piece in values.split(PIECE)], -1) * scales.to(x.dtype)


@cache
def code_for_one() -> Attempt:
    """`by_reading` for one row of x, compiled for all sizes of weights."""
    return Attempt(by_reading, by_widening, "products in 8 bits are slow,", dynamic=True)


class Int8Linear(nn.Module):
    """A linear layer whose weights are rounded."""

    values: Tensor
    scales: Tensor

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        rounded = Int8.of(like.weight)
        self.register_buffer("values", rounded.values)
        self.register_buffer("scales", rounded.scales)
        self.bias = None if like.bias is None else nn.Parameter(like.bias.detach(), requires_grad=False)
        self.dtype = like.weight.dtype

    @property
    def weight(self) -> Tensor:
        """The weights, widened, for parts that do their own products with them."""
        return Int8(self.values, self.scales).wide(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return Int8(self.values, self.scales).product(x, self.bias)


class Int8Table(nn.Module):
    """A table of words whose rows are rounded; an embedding looks rows up in it and a head multiplies with it."""

    values: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        rounded = Int8.of(weight)
        self.register_buffer("values", rounded.values)
        self.register_buffer("scales", rounded.scales)

    @property
    def weight(self) -> Int8:
        """The rows."""
        return Int8(self.values, self.scales)


def look_up(ids: Tensor, rows: Tensor | Int8) -> Tensor:
    """The rows of some ids."""
    return rows.look_up(ids) if isinstance(rows, Int8) else F.embedding(ids, rows)


def product(x: Tensor, rows: Tensor | Int8, bias: Tensor | None) -> Tensor:
    """(...,K) to (...,N)."""
    return rows.product(x, bias) if isinstance(rows, Int8) else F.linear(x, rows, bias)

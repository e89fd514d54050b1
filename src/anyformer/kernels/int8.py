"""Rows of weights in 8 bits, and products with them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.kernels import row_gradient
from anyformer.kernels.cpu import is_available
from anyformer.kernels.onednn import linear
from anyformer.kernels.row_gradient import RowsOfTable

LARGEST = 127  # of 8 bits with sign; -128 is left out, so that both sides are alike
TOGETHER = 4  # rows of the input that share one reading of the weights
FEW = 16  # rows of the input up to which weights are widened as they are read, where the compiler makes the code
PIECE = 4096  # rows of weights widened at once where a copy has to be made


class Int8(NamedTuple):
    """Weights scale * n: whole numbers n from -127 to 127, (N,K), and a scale for each row, (N,)."""

    values: Tensor
    scales: Tensor
    dtype: torch.dtype = torch.float32  # of the weights as they were

    @classmethod
    def of(cls, weight: Tensor) -> Int8:
        """The nearest such weights: none is off by more than half of its row's scale."""
        exact = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        scales = exact.abs().amax(1) / LARGEST
        scales = scales.where(scales > 0, 1.0)  # a row of zeros
        return cls((exact / scales[:, None]).round().to(torch.int8), scales, weight.dtype)

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The weights themselves, (N,K)."""
        return self.values.to(dtype) * self.scales[:, None].to(dtype)

    def look_up(self, ids: Tensor) -> Tensor:
        """The rows of some ids, (...,K)."""
        return (self.values[ids].to(self.scales.dtype) * self.scales[ids][..., None]).to(self.dtype)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """(...,K) to (...,N), in the precision of x; on a CPU sums are made in float32."""
        if self.ours(x):
            within = bias if bias is not None and bias.dtype == torch.float32 else None
            y = torch.ops.anyformer.few_rows(x.float(), self.values, self.scales, within)
            bias = None if within is bias else bias
        elif torch.compiler.is_compiling() and x.numel() <= FEW * x.shape[-1]:
            y = by_reading(x, self.values, self.scales)
        else:
            y = by_widening(x, self.values, self.scales)
        return (y if bias is None else y + bias).to(x.dtype)

    def ours(self, x: Tensor) -> bool:
        """Whether machine code of our own makes products with x: it knows float32, and nothing of gradients."""
        fits = x.device.type == "cpu" and self.scales.dtype == torch.float32
        return fits and not (x.requires_grad and torch.is_grad_enabled()) and is_available()


def by_reading(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Products (...,N) as sums: compiled, every weight is read once, in 8 bits, for each few rows of x (...,K)."""
    found = []
    for some in x.float().reshape(-1, x.shape[-1]).split(TOGETHER):
        wide = values.float()
        found += [(wide * row).sum(-1) * scales for row in some.unbind()]
    return torch.stack(found).reshape(*x.shape[:-1], -1)


def by_widening(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Products (...,N) with a wide copy of the weights: plain, and right everywhere."""
    if torch.compiler.is_compiling():
        return F.linear(x, values.to(x.dtype)) * scales.to(x.dtype)
    return torch.cat([F.linear(x, piece.to(x.dtype)) for piece in values.split(PIECE)], -1) * scales.to(x.dtype)


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
    like: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        rounded = Int8.of(weight)
        self.register_buffer("values", rounded.values)
        self.register_buffer("scales", rounded.scales)
        self.register_buffer("like", weight.new_empty(0), persistent=False)  # what `to(dtype)` would make of them

    @property
    def weight(self) -> Int8:
        """The rows."""
        return Int8(self.values, self.scales, self.like.dtype)


def look_up(ids: Tensor, rows: Tensor | Int8) -> Tensor:
    """The rows of some ids."""
    if isinstance(rows, Int8):
        return rows.look_up(ids)
    if row_gradient.wanted(rows):
        found: Tensor = RowsOfTable.apply(ids, rows)
        return found
    return F.embedding(ids, rows)


def product(x: Tensor, rows: Tensor | Int8, bias: Tensor | None) -> Tensor:
    """(...,K) to (...,N)."""
    return rows.product(x, bias) if isinstance(rows, Int8) else linear(x, rows, bias)

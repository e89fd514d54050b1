"""Weights in int8 with a scale per row, and linear layers with them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.kernels import row_gradient
from anyformer.kernels.cpu import is_available
from anyformer.kernels.onednn import linear
from anyformer.kernels.row_gradient import RowsOfTable

LARGEST = 127  # of int8; -128 is left out to keep the range symmetric
TOGETHER = 4  # input rows that share one read of the weights
FEW = 16  # input rows up to which compiled code dequantises weights as it reads them
PIECE = 4096  # weight rows dequantised at once where a copy has to be made


class Int8(NamedTuple):
    """Weights scale * n: int8 n from -127 to 127, (N,K), and a scale per row, (N,)."""

    values: Tensor
    scales: Tensor
    dtype: torch.dtype = torch.float32  # of the original weights

    @classmethod
    def of(cls, weight: Tensor) -> Int8:
        """Round to the nearest: no weight is off by more than half of its row's scale."""
        exact = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
        scales = exact.abs().amax(1) / LARGEST
        scales = scales.where(scales > 0, 1.0)  # a row of zeros
        return cls((exact / scales[:, None]).round().to(torch.int8), scales, weight.dtype)

    def wide(self, dtype: torch.dtype) -> Tensor:
        """The dequantised weights, (N,K)."""
        return self.values.to(dtype) * self.scales[:, None].to(dtype)

    def look_up(self, ids: Tensor) -> Tensor:
        """The dequantised rows of ids, (...,K)."""
        return (self.values[ids].to(self.scales.dtype) * self.scales[ids][..., None]).to(self.dtype)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Linear layer, (...,K) to (...,N), in the dtype of x."""
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
        """Whether our CPU kernel applies to x: it needs float32 scales, and has no backward pass."""
        fits = x.device.type == "cpu" and self.scales.dtype == torch.float32
        return fits and not (x.requires_grad and torch.is_grad_enabled()) and is_available()


def by_reading(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Linear layer as explicit sums: once compiled, int8 weights are read once per TOGETHER rows of x (...,K)."""
    found = []
    for some in x.float().reshape(-1, x.shape[-1]).split(TOGETHER):
        wide = values.float()
        found += [(wide * row).sum(-1) * scales for row in some.unbind()]
    return torch.stack(found).reshape(*x.shape[:-1], -1)


def by_widening(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Linear layer on a dequantised copy of the weights: slower, but works everywhere."""
    if torch.compiler.is_compiling():
        return F.linear(x, values.to(x.dtype)) * scales.to(x.dtype)
    return torch.cat([F.linear(x, piece.to(x.dtype)) for piece in values.split(PIECE)], -1) * scales.to(x.dtype)


class Int8Linear(nn.Module):
    """A linear layer with int8 weights."""

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
        """The dequantised weights, for modules that use them directly."""
        return Int8(self.values, self.scales).wide(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return Int8(self.values, self.scales).product(x, self.bias)


class Int8Table(nn.Module):
    """An int8 embedding table, used by the embedding for lookup and by the head as a linear layer."""

    values: Tensor
    scales: Tensor
    like: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        rounded = Int8.of(weight)
        self.register_buffer("values", rounded.values)
        self.register_buffer("scales", rounded.scales)
        self.register_buffer("like", weight.new_empty(0), persistent=False)  # follows `to(dtype)`

    @property
    def weight(self) -> Int8:
        """The int8 rows."""
        return Int8(self.values, self.scales, self.like.dtype)


def look_up(ids: Tensor, rows: Tensor | Int8) -> Tensor:
    """Embedding lookup of ids."""
    if isinstance(rows, Int8):
        return rows.look_up(ids)
    if row_gradient.wanted(rows):
        found: Tensor = RowsOfTable.apply(ids, rows)
        return found
    return F.embedding(ids, rows)


def product(x: Tensor, rows: Tensor | Int8, bias: Tensor | None) -> Tensor:
    """Linear layer, (...,K) to (...,N)."""
    return rows.product(x, bias) if isinstance(rows, Int8) else linear(x, rows, bias)

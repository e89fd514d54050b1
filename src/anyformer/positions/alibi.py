"""ALiBi (2108.12409): scores fall linearly with distance, each head at its own rate."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.device_tables import Known, cached_table
from anyformer.slots import Relative


class Alibi(Relative):
    """Adds -slope * distance after scaling; distance is |query - key|, so encoders get the symmetric form."""

    about: ClassVar[About | None] = About("score = q_i . k_j / sqrt(C) - m_h |i - j|", "2108.12409", "H T S")

    def build(self, heads: int, channels: int, value_channels: int, causal: bool) -> nn.Module | None:
        return AlibiModule(heads)

    @property
    def has_bias(self) -> bool:
        return True

    def bias(self, tables: tuple[Tensor, ...], query: Tensor, key: Tensor) -> Tensor | None:
        (slopes,) = tables
        distance = (query[:, :, None] - key[:, None, :]).abs()  # (B or 1, T, S)
        return -slopes[:, None, None] * distance[:, None]  # (B or 1, H, T, S)

    def slopes(self, tables: tuple[Tensor, ...]) -> Tensor | None:
        return tables[0]

    def bias_at(self, tables: tuple[Tensor, ...], head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return -tables[0][head] * (query - key).abs()


class AlibiModule(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.known: Known = {}

    def forward(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, ...]:
        exact = torch.promote_types(dtype, torch.float32)
        made = cached_table(
            self.known, exact, context.positions.device, lambda: torch.tensor(slopes(self.heads), dtype=exact)
        )
        return (made,)


def slopes(heads: int) -> list[float]:
    """One slope per head: 2^(-8/n), 2^(-16/n), ... for n a power of two; others add every second slope of 2n.

    >>> slopes(8)[:3]
    [0.5, 0.25, 0.125]
    """
    power = 2 ** math.floor(math.log2(heads))
    even = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
    return even + between

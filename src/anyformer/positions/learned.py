"""Learned absolute positions: one trained vector per position."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import EmbeddingTable
from anyformer.errors import UserError, check_at_least
from anyformer.slots import Position
from anyformer.spec import field


class Learned(Position):
    """A table of `length` rows; position p takes row p + offset (RoBERTa and BART leave the first two unused)."""

    about: ClassVar[About | None] = About("x_t + P[t]", "1705.03122", "T D")

    length: int = field(kw_only=False)  # Learned(1024)
    """Longest text, in tokens."""
    offset: int = 0
    """Rows of the table left unused at its start (RoBERTa and BART: 2)."""

    def check(self) -> None:
        check_at_least("Learned", "length", self.length, 1, fix="give the longest text in tokens")
        if self.offset < 0:
            raise UserError(f"offset {self.offset} is negative", where="Learned", fix="use 0")

    @property
    def limit(self) -> int | None:
        return self.length

    def build(self, width: int) -> nn.Module:
        return LearnedModule(self, width)


class LearnedModule(nn.Module):
    def __init__(self, spec: Learned, width: int) -> None:
        super().__init__()
        self.offset = spec.offset
        self.table = EmbeddingTable(spec.length + spec.offset, width)

    def forward(self, context: Context, dtype: torch.dtype) -> Tensor:
        if context.positions.is_floating_point():
            raise UserError(f"positions have type {context.positions.dtype}", fix="Learned takes whole numbers")
        return self.table(context.positions + self.offset)  # (B or 1, T, D)

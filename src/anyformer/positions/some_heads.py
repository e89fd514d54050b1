"""Relative positions of a pruned attention layer: each remaining head keeps its own bias."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.errors import UserError
from anyformer.slots import Relative


class SomeHeads(Relative):
    """The bias of `relative` for the given heads, out of `of` heads: what pruning leaves of ALiBi or T5's buckets.

    Layers with the same remaining heads share a table.
    """

    about: ClassVar[About | None] = About("score = q_i . k_j + b[heads[h], i - j]", "1905.10650", "H T S")

    relative: Relative
    """The positions with a bias per head."""
    heads: tuple[int, ...]
    """The remaining heads, from 0."""
    of: int
    """Number of heads of `relative`."""

    wide_bias: ClassVar[bool] = True

    def check(self) -> None:
        if not self.relative.has_bias or not self.relative.shared:
            raise UserError(f"{type(self.relative).__name__} is the same for all heads", where="SomeHeads.relative",
                            fix="use it as it is")  # fmt: skip
        known = set(range(self.of))
        if not self.heads or sorted(known.intersection(self.heads)) != list(self.heads):
            raise UserError(f"heads {self.heads} are not some of 0 to {self.of - 1}, in order, each once",
                            where="SomeHeads.heads", fix="use (0, 2, 3)")  # fmt: skip

    def build(self, heads: int, channels: int, value_channels: int, causal: bool) -> nn.Module | None:
        if heads != len(self.heads):
            raise UserError(f"positions of {len(self.heads)} heads serve an attention of {heads}", where="SomeHeads",
                            fix=f"use Attention(heads={len(self.heads)})")  # fmt: skip
        return self.relative.build(self.of, channels, value_channels, causal)

    @property
    def has_bias(self) -> bool:
        return True

    @property
    def needs_weights(self) -> bool:
        return self.relative.needs_weights

    def rotate(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        return self.relative.rotate(x, tables)

    def bias(self, tables: tuple[Tensor, ...], query: Tensor, key: Tensor) -> Tensor | None:
        whole = self.relative.bias(tables, query, key)
        return None if whole is None else whole[:, list(self.heads)]  # (B or 1, H, T, S)

    def bias_at(self, tables: tuple[Tensor, ...], head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        kept = torch.zeros_like(head)
        for i, own in enumerate(self.heads):  # by `where`, since a kernel cannot create an index tensor
            kept = torch.where(head == i, own, kept)
        return self.relative.bias_at(tables, kept, query, key)

    def slopes(self, tables: tuple[Tensor, ...]) -> Tensor | None:
        whole = self.relative.slopes(tables)
        return None if whole is None else whole[list(self.heads)]

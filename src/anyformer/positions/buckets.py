"""T5's relative positions (1910.10683): distances fall into buckets, each with a learned bias per head."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import EmbeddingTable
from anyformer.errors import UserError, check_at_least
from anyformer.slots import Relative


class Buckets(Relative):
    """Half the buckets are exact distances, the rest grow logarithmically up to `distance`; one table for all layers.

    If not causal, half of all buckets are for keys to the right.
    """

    about: ClassVar[About | None] = About("score = q_i . k_j + b[h, bucket(i - j)]", "1910.10683", "H T S")

    buckets: int = 32
    """Number of buckets of distances."""
    distance: int = 128
    """Distance from which all are in the last bucket."""

    wide_bias: ClassVar[bool] = True

    def check(self) -> None:
        check_at_least("Buckets", "buckets", self.buckets, 4, fix="use 32")
        if self.distance <= self.buckets // 2:
            raise UserError(
                f"distance {self.distance} is not above the {self.buckets // 2} exact buckets",
                where="Buckets", fix=f"use {4 * self.buckets}",
            )  # fmt: skip

    def build(self, heads: int, channels: int, value_channels: int, causal: bool) -> nn.Module | None:
        return BucketsModule(self, heads, causal)

    @property
    def has_bias(self) -> bool:
        return True

    def bias(self, tables: tuple[Tensor, ...], query: Tensor, key: Tensor) -> Tensor | None:
        weight, both_ways = tables
        found = bucket(key[:, None, :] - query[:, :, None], self.buckets, self.distance, both_ways.numel() > 0)
        return rows_of(weight, found).permute(0, 3, 1, 2)  # (B or 1, H, T, S)

    def bias_at(self, tables: tuple[Tensor, ...], head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        weight, both_ways = tables
        return weight[bucket(key - query, self.buckets, self.distance, both_ways.numel() > 0), head]


class BucketsModule(nn.Module):
    def __init__(self, spec: Buckets, heads: int, causal: bool) -> None:
        super().__init__()
        self.spec, self.causal = spec, causal
        self.table = EmbeddingTable(spec.buckets, heads)

    def forward(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, ...]:
        if context.positions.is_floating_point():
            raise UserError(f"positions have type {context.positions.dtype}", fix="Buckets takes whole numbers")
        # Tables must be tensors; the direction is passed as a tensor's length (0 or 1), which is static when compiled.
        return self.table.weight, torch.empty(0 if self.causal else 1, device=context.positions.device)


def rows_of(weight: Tensor, found: Tensor) -> Tensor:
    """weight[found]. For training on a GPU as a one-hot matmul: an indexed lookup would accumulate thousands of
    gradients into few rows serially."""
    if weight.is_cuda and weight.requires_grad and torch.is_grad_enabled():
        return F.one_hot(found, weight.shape[0]).to(weight.dtype) @ weight
    return weight[found]


def bucket(offset: Tensor, buckets: int, distance: int, both_ways: bool) -> Tensor:
    """The bucket of each key minus query position."""
    found = torch.zeros_like(offset)
    if both_ways:
        buckets //= 2
        found = (offset > 0).long() * buckets
        away = offset.abs()
    else:
        away = (-offset).clamp(min=0)
    exact = buckets // 2
    # float32 as in the original: at bucket edges another precision would round to the neighbouring bucket.
    grown = torch.log(away.clamp(min=1).float() / exact) / math.log(distance / exact) * (buckets - exact)
    far = (exact + grown.long()).clamp(max=buckets - 1)
    return found + torch.where(away < exact, away, far)

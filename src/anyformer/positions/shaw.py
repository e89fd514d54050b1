"""Relative positions of Shaw et al. (1803.02155): learned vectors a^K and a^V for every clipped distance."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import EmbeddingTable
from anyformer.errors import UserError, check_at_least
from anyformer.slots import Relative
from anyformer.spec import field


class Shaw(Relative):
    """e_ij = q_i . (k_j + a^K_ij) * scale and z_i = sum_j alpha_ij (v_j + a^V_ij), distances clipped to [-k, k].

    Vectors are per layer and shared by the heads, as in the paper. No T x T x C tensor is materialised: queries are
    multiplied with the 2k+1 vectors and gathered by distance, weights are summed by distance before a^V is applied.
    """

    about: ClassVar[About | None] = About(
        "score = q_i . (k_j + a[i - j]), y_i = sum_j w_ij (v_j + a'[i - j])", "1803.02155", "H T S C"
    )

    k: int = field(default=16, kw_only=False)  # Shaw(16)
    """Clipping distance."""
    values_too: bool = True
    """Whether values get vectors as well as keys."""
    shared: ClassVar[bool] = False

    def check(self) -> None:
        check_at_least("Shaw", "k", self.k, 1, fix="use 16")

    def build(self, heads: int, channels: int, value_channels: int, causal: bool) -> nn.Module | None:
        return ShawModule(self, channels, value_channels)

    @property
    def needs_weights(self) -> bool:
        return True

    def nearest(self, query: Tensor, key: Tensor) -> Tensor:
        """Table row of each query-key pair, (B or 1, T, S)."""
        return (key[:, None, :] - query[:, :, None]).clamp(-self.k, self.k) + self.k

    def scores(self, q: Tensor, tables: tuple[Tensor, ...], query: Tensor, key: Tensor) -> Tensor | None:
        by_distance = q @ tables[0].to(q.dtype).T  # (B,H,T,2k+1)
        rows = self.nearest(query, key)[:, None].expand(q.shape[0], q.shape[1], -1, -1)
        return by_distance.gather(3, rows)  # (B,H,T,S)

    def values(self, weights: Tensor, tables: tuple[Tensor, ...], query: Tensor, key: Tensor) -> Tensor | None:
        if not self.values_too:
            return None
        rows = self.nearest(query, key)[:, None].expand_as(weights)
        by_distance = weights.new_zeros(*weights.shape[:3], 2 * self.k + 1).scatter_add(3, rows, weights)
        return by_distance @ tables[1].to(weights.dtype)  # (B,H,T,C')


class ShawModule(nn.Module):
    def __init__(self, spec: Shaw, channels: int, value_channels: int) -> None:
        super().__init__()
        self.keys = EmbeddingTable(2 * spec.k + 1, channels)
        self.values = EmbeddingTable(2 * spec.k + 1, value_channels) if spec.values_too else None

    def forward(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, ...]:
        if context.positions.is_floating_point():
            raise UserError(f"positions have type {context.positions.dtype}", fix="Shaw takes whole numbers")
        none = torch.empty(0, device=context.positions.device)
        return self.keys.weight, none if self.values is None else self.values.weight

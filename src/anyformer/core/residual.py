"""The residual connection around a sublayer, with norms where the settings place them.

y = after( x + inside( sublayer( before(x) ) ) )

pre {before}   post {after}   branch {inside}   sandwich {before, inside}
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from anyformer.kernels.dropout import dropout
from anyformer.slots import Norm

Place = Literal["pre", "post", "branch", "sandwich"]


class Residual(nn.Module):
    """`enter` and `leave` a branch, and `join` one or more branches with the residual stream."""

    def __init__(
        self, norm: Norm, width: int, *, place: Place, residual: bool, dropout: float, layer_scale: float | None,
        drop_path: float, joins: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        identity = nn.Identity
        self.before = norm.build(width) if place in ("pre", "sandwich") else identity()
        self.inside = norm.build(width) if place in ("branch", "sandwich") else identity()
        self.after = norm.build(width) if place == "post" and joins else identity()
        self.scale = None if layer_scale is None else nn.Parameter(torch.full((width,), layer_scale))
        self.scale_start = layer_scale
        self.residual, self.dropout, self.drop_path = residual, dropout, drop_path

    def enter(self, x: Tensor) -> Tensor:
        return self.before(x)

    def leave(self, y: Tensor) -> Tensor:
        y = self.inside(y)
        y = dropout(y, self.dropout) if self.dropout and self.training else y
        y = y if self.scale is None else y * self.scale
        return y if self.drop_path == 0.0 or not self.training else self.drop_rows(y)

    def join(self, x: Tensor, *branches: Tensor) -> Tensor:
        total = branches[0] if not self.residual else x + branches[0]
        for branch in branches[1:]:
            total = total + branch
        return self.after(total)

    def drop_rows(self, y: Tensor) -> Tensor:
        """Stochastic depth (1603.09382): drop the whole branch for random rows, rescale the others."""
        kept = torch.rand(y.shape[0], 1, 1, device=y.device) >= self.drop_path
        return y * kept / (1 - self.drop_path)

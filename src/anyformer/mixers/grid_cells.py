"""Shared by mixers on a grid: cells by row and column, and leading tokens.

Leading tokens (a class token, registers) are not on the grid. In every such mixer they attend to all tokens and are
visible to every cell, without position terms.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from anyformer.core.attend import Scores, attend
from anyformer.core.context import Context
from anyformer.errors import UserError


class GridLayout(NamedTuple):
    """The number of leading tokens, and the grid's rows and columns."""

    leading: int
    rows: int
    columns: int

    def cells(self, x: Tensor) -> Tensor:
        """The cells of (B,T,...) as (B,rows,columns,...)."""
        return x[:, self.leading :].unflatten(1, (self.rows, self.columns))

    def places(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Row and column of all T tokens (0 for leading ones), and whether they are cells."""
        at = torch.arange(-self.leading, self.rows * self.columns, device=device)
        row = at.div(self.columns, rounding_mode="floor")
        return row.clamp(min=0), (at % self.columns).masked_fill(at < 0, 0), at >= 0


def shares(logits: Tensor, seen: Tensor, context: Context) -> Tensor:
    """Weights (B,H,t,T) from scores and a visibility mask (t,T); zeros for fully masked queries."""
    seen = seen if context.mask is None else seen & context.mask[:, None, None]
    logits = logits.masked_fill(~seen, -torch.inf)
    dead = (logits == -torch.inf).all(-1, keepdim=True)
    return logits.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)


def layout_of(context: Context) -> GridLayout:
    """The grid layout of this pass's tokens."""
    if context.grid is None:
        raise UserError("these tokens have no rows and columns", fix="use embed=Patches(...) or mixer=Attention(...)")
    if context.documents is not None:
        raise UserError("an image cannot be cut into documents", where="documents", fix="give one image a row")
    rows, columns = len(range(context.grid[0])), len(range(context.grid[1]))
    # len(range(...)) specialises the sizes: with dynamic ones the compiler takes a minute of symbolic algebra.
    return GridLayout(len(range(context.index.shape[1] - rows * columns)), rows, columns)


def project(qkv: nn.Linear, x: Tensor, context: Context, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B,T,H,C) by one projection whose rows are stored by head, (H,3,C)."""
    q, k, v = qkv(x).unflatten(-1, (heads, 3, -1)).unbind(-2)
    if context.added is not None:  # positions are added to queries and keys, not values (DETR)
        q, k, _ = qkv(x + context.added).unflatten(-1, (heads, 3, -1)).unbind(-2)
    return q, k, v


def look_everywhere(
    q: Tensor, k: Tensor, v: Tensor, context: Context, leading: int, *, scale: float, dropout: float
) -> Tensor:
    """Attention of the leading tokens to all tokens: (B,T,H,C) each, to (B,L,H C)."""
    q, k, v = q[:, :leading].transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B,H,L,C), (B,H,T,C)
    y = attend(q, k, v, Scores(scale=scale, key_mask=context.mask), dropout=dropout)
    return y.transpose(1, 2).flatten(2)


def check_heads_fit(width: int, heads: int) -> None:
    """Check that the heads divide the width."""
    if width % heads:
        near = max(heads, round(width / heads) * heads)
        raise UserError(f"width {width} is not divisible by heads {heads}", where="width", fix=f"try width {near}")

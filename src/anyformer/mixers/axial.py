"""Axial attention (2003.07853): along the columns of a grid, then along its rows, so that two steps reach every
cell."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anyformer.about import About
from anyformer.core.attend import ROWS
from anyformer.core.attention_weights import Weighing
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, normal
from anyformer.errors import UserError
from anyformer.mixers.grid_cells import check_heads_fit, layout_of, look_everywhere, project, shares
from anyformer.mixers.heads import check_heads
from anyformer.slots import Mixer, Relative


class Axial(Mixer):
    """A cell attends to its column, then its row (`joined="sum"`: both in parallel), at most `span` // 2 cells away.

    Positions are as in the paper: learned vectors per distance, shared by the heads, which interact with queries and
    keys and are added to the values. Leading tokens attend to all tokens and are visible to all.
    """

    heads: int
    """Attention heads."""
    span: int = 127
    """Cells of a row or column that a cell attends to, half to either side."""
    joined: Literal["sequence", "sum"] = "sequence"
    """Column, then row; or the sum of both."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""

    takes_added: ClassVar[bool] = True
    needs_grid: ClassVar[bool] = True
    causal_form: ClassVar[bool] = False
    about: ClassVar[About | None] = About(
        "y_i = sum_{j in column(i)} softmax_j((q_i.k_j + q_i.r_{j-i} + k_j.s_{j-i}) / sqrt(C)) (v_j + u_{j-i}); "
        "then the same along rows", "2003.07853", "T D^2 + T k D, k = rows + columns",
    )  # fmt: skip

    def check(self) -> None:
        check_heads("Axial", self.heads, None, self.dropout, "sqrt")
        if self.span < 1 or self.span % 2 == 0:
            raise UserError(f"span {self.span} has no middle", where="Axial", fix=f"use {max(1, self.span + 1)}")

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        check_heads_fit(width, self.heads)
        return AxialModule(self, width)


class AxialModule(nn.Module):
    def __init__(self, spec: Axial, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.column = AlongLines(spec, width, upright=True)
        self.row = AlongLines(spec, width, upright=False)
        self.out = LinearLayer(width, width, bias=spec.bias)

    def forward(self, x: Tensor, context: Context, state: None, tables: tuple[Tensor, ...]) -> Tensor:
        y = self.column(x, context, None, ())
        if self.spec.joined == "sum":
            return self.out(y + self.row(x, context, None, ()))
        return self.out(self.row(y, context, None, ()))


class AlongLines(Weighing, Starting):
    """Attention within every column (`upright`) or every row: (B,T,D) to (B,T,D)."""

    def __init__(self, spec: Axial, width: int, upright: bool) -> None:
        super().__init__()
        channels = width // spec.heads
        self.spec, self.upright, self.scale = spec, upright, channels**-0.5
        self.qkv = LinearLayer(width, 3 * width, bias=spec.bias)
        self.table = nn.Parameter(torch.zeros(3, spec.span, channels))  # for queries, keys, values
        self.starts = {"table": normal(self.scale)}

    def forward(self, x: Tensor, context: Context, state: None, tables: tuple[Tensor, ...]) -> Tensor:
        layout = layout_of(context)
        dropout = self.spec.dropout if self.training else 0.0
        q, k, v = project(self.qkv, x, context, self.spec.heads)  # (B,T,H,C)
        line_q, line_k, line_v = (self.lines(layout.cells(part)) for part in (q, k, v))  # (B,N,H,R,C)
        led_k, led_v = (part[:, None, : layout.leading].transpose(2, 3) for part in (k, v))  # (B,1,H,L,C)
        near, terms = self.terms(line_q.shape[3], x.dtype)
        real, led = None, None
        if context.mask is not None:
            real = self.lines(layout.cells(context.mask)[..., None])  # (B,N,1,R)
            led = context.mask[:, None, None, : layout.leading]  # (B,1,1,L)
        batch, lines, heads, length, _ = line_q.shape
        at_once = max(1, ROWS // (batch * heads * length * (length + layout.leading)))
        if lines <= at_once:
            y = self.attend(line_q, line_k, line_v, led_k, led_v, near, terms, real, led, dropout)
        else:  # in blocks of lines, recomputed in the backward pass, to bound memory
            blocks = [
                checkpoint(
                    self.attend, line_q[:, some], line_k[:, some], line_v[:, some], led_k, led_v, near, terms,
                    None if real is None else real[:, some], led, dropout, use_reentrant=False,
                )
                for some in (slice(start, start + at_once) for start in range(0, lines, at_once))
            ]  # fmt: skip
            y = torch.cat(blocks, 1)
        y = y.permute(0, 3, 1, 2, 4) if self.upright else y.permute(0, 1, 3, 2, 4)  # (B,rows,columns,H,C)
        y = y.flatten(3).flatten(1, 2)
        if not layout.leading:
            return y
        return torch.cat([look_everywhere(q, k, v, context, layout.leading, scale=self.scale, dropout=dropout), y], 1)

    def lines(self, cells: Tensor) -> Tensor:
        """(B,rows,columns,H,...) to (B,N,H,R,...), N lines of R cells."""
        return cells.transpose(1, 2).transpose(2, 3) if self.upright else cells.transpose(2, 3)

    def terms(self, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Visibility between places, (R,R), and the relative vectors between them, (3,R,R,C)."""
        place = torch.arange(length, device=self.table.device)
        gap, reach = place - place[:, None], self.spec.span // 2
        return gap.abs() <= reach, self.table[:, gap.clamp(-reach, reach) + reach].to(dtype)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, led_k: Tensor, led_v: Tensor, near: Tensor, terms: Tensor,
        real: Tensor | None, led: Tensor | None, dropout: float,
    ) -> Tensor:  # fmt: skip
        """Some lines (B,n,H,R,C) and the tokens before the grid (B,1,H,L,C), to (B,n,H,R,C)."""
        weights = self.weigh(q, k, led_k, near, terms, real, led).to(v.dtype)
        weights = F.dropout(weights, dropout) if dropout else weights
        leading = led_k.shape[3]
        line = weights[..., leading:]
        y = line @ v + torch.einsum("bnhij,ijc->bnhic", line, terms[2])
        return y + weights[..., :leading] @ led_v if leading else y

    def weigh(
        self, q: Tensor, k: Tensor, led_k: Tensor, near: Tensor, terms: Tensor, real: Tensor | None, led: Tensor | None
    ) -> Tensor:
        """Weights (B,n,H,R,L+R), in float32 or better; zeros for fully masked queries."""
        exact = torch.promote_types(q.dtype, torch.float32)
        q, k, led_k, terms = q.to(exact), k.to(exact), led_k.to(exact), terms.to(exact)
        logits = q @ k.mT + torch.einsum("bnhic,ijc->bnhij", q, terms[0])
        logits = logits + torch.einsum("bnhjc,ijc->bnhij", k, terms[1])
        allowed = near if real is None else near & real[:, :, :, None]
        logits = logits.masked_fill(~allowed, -torch.inf)
        if led_k.shape[3]:
            first = q @ led_k.mT  # (B,n,H,R,L)
            first = first if led is None else first.masked_fill(~led[..., None, :], -torch.inf)
            logits = torch.cat([first, logits], -1)
        logits = logits * self.scale
        if real is None:
            return logits.softmax(-1)
        dead = (logits == -torch.inf).all(-1, keepdim=True)
        return logits.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)

    def weights(self, x: Tensor, context: Context, state: None, tables: tuple[Tensor, ...], rows: slice) -> Tensor:
        """Weights (B,H,t,T) over all tokens; the position terms of the values are not included."""
        layout, reach = layout_of(context), self.spec.span // 2
        exact = torch.promote_types(x.dtype, torch.float32)
        q, k = (part.to(exact).transpose(1, 2) for part in project(self.qkv, x, context, self.spec.heads)[:2])
        q = q[:, :, rows]
        row, column, cell = layout.places(x.device)
        place, line = (row, column) if self.upright else (column, row)
        both, gap = cell[rows, None] & cell, place - place[rows, None]  # (t,T)
        at, table = gap.clamp(-reach, reach) + reach, self.table.to(exact)
        queries = torch.arange(q.shape[2], device=x.device)[:, None]
        keys = torch.arange(k.shape[2], device=x.device)
        terms = (q @ table[0].mT)[:, :, queries, at] + (k @ table[1].mT)[:, :, keys, at]
        logits = (q @ k.mT + terms.masked_fill(~both, 0.0)) * self.scale
        return shares(logits, ~both | (gap.abs() <= reach) & (line == line[rows, None]), context)

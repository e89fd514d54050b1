"""Attention within square windows of a grid, shifted by half a window in every second layer (Swin, 2103.14030)."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import Scores, attend
from anyformer.core.attention_weights import Weighing
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, normal
from anyformer.errors import check_at_least
from anyformer.mixers.grid_cells import check_heads_fit, layout_of, look_everywhere, project, shares
from anyformer.mixers.heads import check_heads
from anyformer.slots import Mixer, Relative


class Window2D(Mixer):
    """Cells attend within their own window of `window` cells per side; `shift` moves all windows by half of that.

    A learned bias for each head and (row, column) distance is added to the scores. Along an axis no longer than the
    window there is one window and no shift. Leading tokens attend to all tokens and are visible to all.
    Layers alternate by `Stack(block=(Block(mixer=Window2D(...)), Block(mixer=Window2D(..., shift=True))))`.
    """

    heads: int
    """Attention heads."""
    window: int = 7
    """Window size in cells per side."""
    shift: bool = False
    """Whether windows are shifted by half their size."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""

    takes_added: ClassVar[bool] = True
    needs_grid: ClassVar[bool] = True
    causal_form: ClassVar[bool] = False
    about: ClassVar[About | None] = About(
        "y_i = sum_{j in window(i)} softmax_j(q_i.k_j / sqrt(C) + b[row_i - row_j, col_i - col_j]) v_j",
        "2103.14030", "T D^2 + T k^2 D",
    )  # fmt: skip

    def check(self) -> None:
        check_heads("Window2D", self.heads, None, self.dropout, "sqrt")
        check_at_least("Window2D", "window", self.window, 1, fix="use 7")

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        check_heads_fit(width, self.heads)
        return Window2DModule(self, width)


class Axis(NamedTuple):
    """One axis of the grid cut into windows: its length, cells of a window, shift, number of windows."""

    length: int
    size: int
    shift: int
    pieces: int

    @classmethod
    def cut(cls, length: int, window: int, shifted: bool) -> Axis:
        if length <= window:
            return cls(length, length, 0, 1)
        return cls(length, window, window // 2 if shifted else 0, -(-length // window))

    @property
    def whole(self) -> bool:
        """Whether every window is full and contiguous."""
        return not self.shift and self.size * self.pieces == self.length

    def window_of(self, device: torch.device) -> Tensor:
        """The window of each place, including padding; a shift leaves a partial first window, -1."""
        places = torch.arange(self.size * self.pieces, device=device)
        return (places - self.shift).div(self.size, rounding_mode="floor")


def windows(x: Tensor, down: Axis, along: Axis) -> Tensor:
    """Cells (B,rows,columns,...) to (B,W,n,...), n cells of W windows, zero-padded.

    A shift rolls the grid, so that the last window along an axis also holds the partial first one: `seen` masks them
    from
    each other.
    """
    spare = (down.size * down.pieces - down.length, along.size * along.pieces - along.length)
    if any(spare):
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, spare[1], 0, spare[0]))
    if down.shift or along.shift:
        x = x.roll((-down.shift, -along.shift), (1, 2))
    x = x.unflatten(2, (along.pieces, along.size)).unflatten(1, (down.pieces, down.size))  # (B,wr,kr,wc,kc,...)
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def grid(y: Tensor, down: Axis, along: Axis) -> Tensor:
    """The inverse: (B,W,n,D) to (B,rows,columns,D)."""
    y = y.unflatten(2, (down.size, along.size)).unflatten(1, (down.pieces, along.pieces)).transpose(2, 3)
    y = y.flatten(3, 4).flatten(1, 2)
    if down.shift or along.shift:
        y = y.roll((down.shift, along.shift), (1, 2))
    return y[:, : down.length, : along.length]


def ahead(x: Tensor, near: Tensor, leading: int) -> Tensor:
    """Prepend the leading tokens' keys or values, of (B,T,H,C), to those of every window (B,W,H,n,C)."""
    led = x[:, :leading].transpose(1, 2)[:, None].expand(-1, near.shape[1], -1, -1, -1)
    return torch.cat([led, near], 3)


class Window2DModule(Weighing, Starting):
    def __init__(self, spec: Window2D, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.scale = (width // spec.heads) ** -0.5
        self.qkv = LinearLayer(width, 3 * width, bias=spec.bias)
        self.out = LinearLayer(width, width, bias=spec.bias)
        self.table = nn.Parameter(torch.zeros((2 * spec.window - 1) ** 2, spec.heads))  # by distance: rows, columns
        self.starts = {"table": normal(0.02)}

    def forward(self, x: Tensor, context: Context, state: None, tables: tuple[Tensor, ...]) -> Tensor:
        layout, heads = layout_of(context), self.spec.heads
        down, along = self.axes(layout.rows, layout.columns)
        dropout = self.spec.dropout if self.training else 0.0
        q, k, v = project(self.qkv, x, context, heads)  # (B,T,H,C)
        inside, near_k, near_v = (windows(layout.cells(part), down, along).transpose(2, 3) for part in (q, k, v))
        if layout.leading:  # (B,W,H,n,C) each; keys and values (B,W,H,L+n,C)
            near_k, near_v = ahead(k, near_k, layout.leading), ahead(v, near_v, layout.leading)
        seen = self.seen(context, down, along)
        bias = F.pad(self.bias(down.size, along.size), (layout.leading, 0)).to(x.dtype)  # (H,n,L+n)
        if seen is None:  # no mask: windows are batch rows
            scores, dim = Scores(scale=self.scale, added=bias[None]), 0
        else:  # masks differ by window but not by image: windows are heads
            added = bias.expand(seen.shape[1], -1, -1, -1).flatten(0, 1)[None]
            allowed = seen[:, :, None].expand(-1, -1, heads, -1, -1).flatten(1, 2)
            scores, dim = Scores(scale=self.scale, added=added, allowed=allowed), 1
        q_in, k_in, v_in = (part.flatten(dim, dim + 1) for part in (inside, near_k, near_v))
        y = attend(q_in, k_in, v_in, scores, dropout=dropout).unflatten(dim, inside.shape[dim : dim + 2])
        cells = grid(y.transpose(2, 3).flatten(3), down, along).flatten(1, 2)  # (B,rows columns,D)
        if layout.leading:
            first = look_everywhere(q, k, v, context, layout.leading, scale=self.scale, dropout=dropout)
            cells = torch.cat([first, cells], 1)
        return self.out(cells)

    def axes(self, rows: int, columns: int) -> tuple[Axis, Axis]:
        window, shift = self.spec.window, self.spec.shift
        return Axis.cut(rows, window, shift), Axis.cut(columns, window, shift)

    def bias(self, rows: int, columns: int) -> Tensor:
        """The relative position bias between the cells of a window, (H,n,n)."""
        side, device = 2 * self.spec.window - 1, self.table.device
        row = torch.arange(rows, device=device).repeat_interleave(columns)
        column = torch.arange(columns, device=device).repeat(rows)
        down, along = row[:, None] - row + self.spec.window - 1, column[:, None] - column + self.spec.window - 1
        return self.table[down * side + along].permute(2, 0, 1)

    def seen(self, context: Context, down: Axis, along: Axis) -> Tensor | None:
        """Visibility mask within windows, (B or 1, W, n, L+n); None if all windows are full."""
        if down.whole and along.whole and context.mask is None:
            return None
        layout, device = layout_of(context), context.index.device
        numbers = down.window_of(device)[:, None] * (along.pieces + 2) + along.window_of(device)  # one per window
        whole = Axis(len(numbers), *down[1:]), Axis(numbers.shape[1], *along[1:])  # no padding needed
        number = windows(numbers[None], *whole)  # (1,W,n)
        if context.mask is None:
            real = torch.ones(1, layout.rows, layout.columns, dtype=torch.bool, device=device)
        else:
            real = layout.cells(context.mask)
        keys = windows(real, down, along)[:, :, None]  # (B or 1, W, 1, n)
        together = (number[..., :, None] == number[..., None, :]) & keys
        if not layout.leading:
            return together
        shape = (*together.shape[:3], layout.leading)
        led = together.new_ones(()) if context.mask is None else context.mask[:, None, None, : layout.leading]
        return torch.cat([led.expand(shape), together], -1)

    def weights(self, x: Tensor, context: Context, state: None, tables: tuple[Tensor, ...], rows: slice) -> Tensor:
        """Weights (B,H,t,T) over all tokens."""
        layout = layout_of(context)
        down, along = self.axes(layout.rows, layout.columns)
        exact = torch.promote_types(x.dtype, torch.float32)
        q, k, _ = project(self.qkv, x, context, self.spec.heads)
        logits = torch.einsum("bthc,bshc->bhts", q[:, rows].to(exact), k.to(exact)) * self.scale
        row, column, cell = layout.places(x.device)
        number = down.window_of(x.device)[row] * (along.pieces + 2) + along.window_of(x.device)[column]
        both = cell[rows, None] & cell  # (t,T)
        together = both & (number[rows, None] == number)
        gaps = [(at[rows, None] - at).masked_fill(~together, 0) + self.spec.window - 1 for at in (row, column)]
        bias = self.table[gaps[0] * (2 * self.spec.window - 1) + gaps[1]].permute(2, 0, 1)  # (H,t,T)
        return shares(logits + bias.to(exact).masked_fill(~both, 0.0), together | ~both, context)

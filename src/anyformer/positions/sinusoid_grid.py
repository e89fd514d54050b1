"""2-D sinusoids of rows and columns (2005.12872), without parameters."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.errors import UserError, check_at_least
from anyformer.positions.sinusoid import sinusoid
from anyformer.slots import Position

EDGE = 1e-6  # avoids division by zero for a row or column of padding only


class SinusoidGrid(Position):
    """Half the channels encode the row, half the column, each as a fraction of the image times 2 pi.

    Padding does not count: an image's size is that of its real cells. Leading tokens get zeros.

    >>> from anyformer import Patches
    >>> Patches(size=32, patch=4, position=SinusoidGrid()).grid
    (8, 8)
    """

    base: float = 10000.0
    """Base of the wavelengths."""
    leading: int | None = None
    """Number of leading tokens, which get zeros; filled in by the embedding."""

    about: ClassVar[About | None] = About(
        "PE(y, x) = [sinusoid(2 pi y / rows), sinusoid(2 pi x / columns)], D / 2 channels each", "2005.12872", "T D"
    )

    def check(self) -> None:
        if self.base <= 1:
            raise UserError(f"base {self.base} is not above 1", where="SinusoidGrid", fix="use 10000")
        check_at_least("SinusoidGrid", "leading", self.leading, 0, fix="leave it to the embedding")

    def over(self, rows: int, columns: int, extra: int) -> SinusoidGrid:
        return self.replace(leading=extra) if self.leading is None else self

    def build(self, width: int) -> nn.Module:
        if self.leading is None:
            raise UserError("sinusoids of rows and columns are for images", fix="use Sinusoid() with this embedding")
        if width % 4:
            raise UserError(f"{width} channels do not divide into sines and cosines of rows and columns",
                            where="SinusoidGrid", fix="use a width that is a multiple of 4")  # fmt: skip
        return SinusoidGridModule(self, width, self.leading)


class SinusoidGridModule(nn.Module):
    """Computed at use, like all sinusoids: in float64 if the device supports it."""

    def __init__(self, spec: SinusoidGrid, width: int, leading: int) -> None:
        super().__init__()
        self.spec, self.width, self.leading = spec, width, leading

    def forward(self, context: Context, dtype: torch.dtype) -> Tensor:
        if context.grid is None:
            raise UserError("SinusoidGrid positions need an image", fix="use Sinusoid() with this embedding")
        (rows, columns), device = context.grid, context.positions.device
        exact = torch.float32 if device.type == "mps" else torch.float64
        if context.mask is None:
            real = torch.ones(1, rows, columns, dtype=exact, device=device)
        else:
            real = context.mask[:, -rows * columns :].unflatten(1, (rows, columns)).to(exact)  # (B,rows,columns)
        y, x = share(real, 1), share(real, 2)
        cells = torch.cat([sinusoid(at, self.width // 2, exact, self.spec.base) for at in (y, x)], -1)
        table = cells.flatten(1, 2)  # (B or 1, N, D)
        if self.leading:
            table = torch.cat([table.new_zeros(table.shape[0], self.leading, self.width), table], 1)
        return table.to(dtype)


def cell_middles(grid: tuple[int, int]) -> Tensor:
    """The centre of every cell of a grid, row by row: (N,2) as x and y in fractions of the image.

    >>> cell_middles((1, 2)).tolist()
    [[0.25, 0.5], [0.75, 0.5]]
    """
    # on the CPU even if a network is built on `meta`: parameters are initialised from it later
    rows, columns = ((torch.arange(n, dtype=torch.float64, device="cpu") + 0.5) / n for n in grid)
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1).flatten(0, 1)


def grid_sinusoid(y: Tensor, x: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """The `SinusoidGrid` encoding of points (N,) in fractions of the image: (N,D)."""
    return torch.cat([sinusoid(at * (2 * math.pi), width // 2, torch.float64, base) for at in (y, x)], -1).float()


def share(real: Tensor, axis: int) -> Tensor:
    """Position of each cell among the real cells along an axis, from just above 0 to 2 pi."""
    rank = real.cumsum(axis)
    return rank / (rank.narrow(axis, -1, 1) + EDGE) * (2 * math.pi)

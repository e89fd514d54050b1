"""Learned 2-D positions of image patches; another image size resamples the table bicubically."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import EmbeddingTable
from anyformer.errors import UserError
from anyformer.slots import Position


class Grid(Position):
    """A learned vector for each of rows x columns patches, and one for each of `extra` leading tokens (class token).

    The embedding fills in the three sizes.

    `resample="size"` interpolates to the exact target size, as transformers does; `"scale"` is DINO's original
    arithmetic (a scale factor with 0.1 added against rounding), for its checkpoints.
    """

    about: ClassVar[About | None] = About("x_rc + P[r, c], resampled for another size", "2010.11929", "T D")

    rows: int | None = None
    """Rows of patches; filled in by the embedding."""
    columns: int | None = None
    """Columns of patches; filled in by the embedding."""
    extra: int | None = None
    """Leading tokens with a vector of their own; filled in by the embedding."""
    resample: Literal["size", "scale"] = "size"
    """How positions of another image size are interpolated."""

    def check(self) -> None:
        for name, least in (("rows", 1), ("columns", 1), ("extra", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} {value} is below {least}", where="Grid", fix="leave it to the embedding")

    def over(self, rows: int, columns: int, extra: int) -> Grid:
        """The same with missing sizes filled in."""
        mine = (self.rows, self.columns, self.extra)
        sizes = [own if own is not None else given for own, given in zip(mine, (rows, columns, extra), strict=True)]
        return self.replace(rows=sizes[0], columns=sizes[1], extra=sizes[2])

    def build(self, width: int) -> nn.Module:
        if self.rows is None or self.columns is None:
            raise UserError(
                "Grid positions are for images", fix="use Learned(length) or Sinusoid() with this embedding"
            )
        return GridModule(self, width, self.rows, self.columns, self.extra or 0)


class GridModule(nn.Module):
    def __init__(self, spec: Grid, width: int, rows: int, columns: int, extra: int) -> None:
        super().__init__()
        self.grid, self.extra, self.resample = (rows, columns), extra, spec.resample
        self.table = EmbeddingTable(extra + rows * columns, width)

    def forward(self, context: Context, dtype: torch.dtype) -> Tensor:
        if context.grid is None:
            raise UserError("Grid positions need patches", fix="use Learned or Sinusoid with this embedding")
        return resize(self.table.weight, self.grid, context.grid, self.extra, self.resample)[None]  # (1, extra + N, D)


def resize(table: Tensor, old: tuple[int, int], new: tuple[int, int], extra: int = 1, resample: str = "size") -> Tensor:
    """Resample the table (extra + N, D) for another grid of patches; unchanged for the same grid."""
    if new == old:
        return table
    width = table.shape[1]
    patches = table[extra:].reshape(1, *old, width).permute(0, 3, 1, 2)  # (1,D,rows,columns)
    exact = patches.to(torch.promote_types(patches.dtype, torch.float32))
    if resample == "scale":
        side = math.sqrt(old[0] * old[1])
        larger = F.interpolate(exact, scale_factor=((new[0] + 0.1) / side, (new[1] + 0.1) / side), mode="bicubic")
    else:
        larger = F.interpolate(exact, size=new, mode="bicubic", align_corners=False)
    resized = larger.to(table.dtype).permute(0, 2, 3, 1).reshape(-1, width)
    return torch.cat([table[:extra], resized])

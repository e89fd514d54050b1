"""Semantic segmentation: a class for every pixel of an image."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.errors import check_range
from anyformer.slots import Head, HeadOutput


class SegmentHead(Head):
    """`classes` logits per pixel, (B,classes,H,W): those of every cell, interpolated to `cell` pixels per side.

    A cell is a patch, or a cell of a backbone's feature maps. Leading tokens (a class token) are left out. Train it
    with
    torch's loss: `F.cross_entropy(net(pixels).logits, labels)` with labels (B,H,W).
    """

    needs_grid: ClassVar[bool] = True
    about: ClassVar[About | None] = About("logits = upsample(W x_n + b)", "2105.05633", "N D classes")

    classes: int
    """Number of classes."""
    cell: int
    """Pixels per side of a token: the patch size, or the backbone's stride."""

    def check(self) -> None:
        check_range("SegmentHead", "classes", self.classes, 1, fix="give the number of labels")
        check_range("SegmentHead", "cell", self.cell, 1, fix="give the patch or the backbone's stride")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return SegmentHeadModule(self, width)


class SegmentHeadModule(nn.Module):
    def __init__(self, spec: SegmentHead, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = LinearLayer(width, spec.classes)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        assert context.grid is not None  # Model.check refuses an embedding without
        cells = self.out(hidden[:, -context.grid[0] * context.grid[1] :])  # (B,N,classes)
        maps = cells.mT.unflatten(-1, context.grid)  # (B,classes,rows,columns)
        return HeadOutput(logits=F.interpolate(maps, scale_factor=float(self.spec.cell), mode="bilinear"))

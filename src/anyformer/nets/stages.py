"""Shared by residual networks: a stem, then stages of blocks, each of which but the first halves the maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import UserError, check_range
from anyformer.slots import Backbone

GROWTH = 4  # output channels of a bottleneck relative to its middle


class Staged(Backbone, slot=True):
    """`depths` are blocks per stage, `width` the first stage's channels over `GROWTH` (doubled by each).

    The `imagenet` stem has stride 4 (stride 2, then pooling), that for `small` images stride 1.
    """

    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks of each stage."""
    width: int = 64
    """A quarter of the channels of the first stage, doubled by each stage."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """Stem: stride 4 (imagenet) or 1 (small)."""
    colours: int = 3
    """Colour channels of the images."""

    def check(self) -> None:
        part = type(self).__name__
        if not self.depths or min(self.depths) < 1:
            what = f"depths {self.depths} holds no stage, or one without a block"
            raise UserError(what, where=f"{part}.depths", fix="use (3, 4, 6, 3)")
        check_range(part, "width", self.width, 1, fix="use 64")
        check_range(part, "colours", self.colours, 1, fix="use 3")

    @property
    def inputs(self) -> int:
        return self.colours

    @property
    def channels(self) -> int:
        return self.width * 2 ** (len(self.depths) - 1) * GROWTH

    @property
    def stride(self) -> int:
        return (4 if self.stem == "imagenet" else 1) * 2 ** (len(self.depths) - 1)


class Stages(nn.Module):
    """`block(inputs, outputs, stage, stride)` makes each block; parameter paths are `stem.…` and `stages.0.1.…`."""

    def __init__(self, spec: Staged, stem: nn.Module, block: Callable[[int, int, int, int], nn.Module]) -> None:
        super().__init__()
        self.spec, self.stem = spec, stem
        self.stages = nn.ModuleList()
        inputs = spec.width
        for stage, depth in enumerate(spec.depths):
            outputs = spec.width * 2**stage * GROWTH
            blocks = nn.ModuleList()
            for i in range(depth):
                blocks.append(block(inputs, outputs, stage, 2 if i == 0 and stage > 0 else 1))
                inputs = outputs
            self.stages.append(blocks)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, colours, H, W) to (B, channels, H / stride, W / stride)."""
        x = self.stem(pixels)
        if self.spec.stem == "imagenet":
            x = F.max_pool2d(x, 3, 2, padding=1)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for block in stage:
                x = block(x)
        return x

"""Object detection: a class, or none, and a box for every token (2005.12872)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, normal, values
from anyformer.errors import UserError, check_at_least
from anyformer.kernels.full_precision import full_precision
from anyformer.positions.sinusoid_grid import cell_middles
from anyformer.slots import Head, HeadOutput


class Boxes(Head):
    """`classes` + 1 logits per token, the last one "no object", and a box by three layers and a sigmoid.

    A box is (centre x, centre y, width, height) in fractions of the image. With `anchors`, rows and columns of a grid
    over the image, token n predicts offsets (in logits) from the centre and size of cell n: objects are then learned by
    nearby tokens, several times sooner than without.
    """

    about: ClassVar[About | None] = About("class = W h; box = sigmoid(W3 relu(W2 relu(W1 h)))", "2005.12872", "2 T D^2")

    classes: int
    """Number of classes."""
    anchors: tuple[int, int] | None = None
    """Rows and columns of the grid of initial boxes, one per token; the image centre if not given."""

    def check(self) -> None:
        if self.anchors is not None and min(self.anchors) < 1:
            raise UserError(f"a grid of {self.anchors[0]} x {self.anchors[1]} has no cell", where="Boxes.anchors",
                            fix="use (10, 10)")  # fmt: skip
        check_at_least("Boxes", "classes", self.classes, 1, fix="give the number of kinds")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return BoxesModule(self, width)


class BoxesModule(nn.Module):
    def __init__(self, spec: Boxes, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = Even(width, spec.classes + 1)
        self.box = nn.ModuleList([LinearLayer(width, width), LinearLayer(width, width), LinearLayer(width, 4)])
        self.start = None if spec.anchors is None else Anchor(spec.anchors)

    def forward(self, hidden: Tensor, context: Context | None, table: Tensor | None) -> HeadOutput:
        """Tokens (...,T,D), of one or several layers, to logits (...,T,classes+1) and boxes (...,T,4)."""
        with full_precision(hidden.device):  # half precision is too coarse for coordinates
            x = hidden.to(self.out.weight.dtype)
            moved = self.box[2](F.relu(self.box[1](F.relu(self.box[0](x)))))
            boxes = (moved if self.start is None else self.start(moved)).sigmoid()
        return HeadOutput(logits=self.out(hidden), boxes=boxes)


class Anchor(Starting):
    """Adds each token's learned initial box, in logits: (...,T,4) to (...,T,4)."""

    def __init__(self, grid: tuple[int, int]) -> None:
        super().__init__()
        middles = cell_middles(grid)
        sizes = middles.new_tensor([1 / grid[1], 1 / grid[0]]).clamp(max=0.5).expand_as(middles)
        self.boxes = nn.Parameter(torch.empty(len(middles), 4))
        self.starts["boxes"] = values(torch.cat([middles, sizes], 1).logit().float())

    def forward(self, moved: Tensor) -> Tensor:
        if moved.shape[-2] != len(self.boxes):
            raise UserError(f"{moved.shape[-2]} tokens meet {len(self.boxes)} anchors", where="Boxes.anchors",
                            fix="give the queries the same grid")  # fmt: skip
        return moved + self.boxes


class Even(LinearLayer, Starting):
    """A linear layer with small initial weights under every scheme, so that a new model starts at chance."""

    def __init__(self, width: int, scores: int) -> None:
        super().__init__(width, scores)
        self.starts["weight"] = normal(0.02)

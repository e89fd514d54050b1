"""Objects in an image: every token answers with a class, or none, and a box (2005.12872)."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.own_init import Starting, normal
from anyformer.errors import UserError
from anyformer.kernels.full_precision import full_precision
from anyformer.slots import Head, HeadOutput


class Boxes(Head):
    """`classes` + 1 logits a token, the last one "no object", and a box by three layers and a sigmoid.

    A box is (centre x, centre y, width, height) in shares of the image, all between 0 and 1.
    """

    about: ClassVar[About | None] = About("class = W h; box = sigmoid(W3 relu(W2 relu(W1 h)))", "2005.12872", "2 T D^2")

    classes: int
    """Number of classes."""

    def check(self) -> None:
        if self.classes < 1:
            raise UserError(f"classes {self.classes} is below 1", where="Boxes", fix="give the number of kinds")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return BoxesModule(self, width)


class BoxesModule(nn.Module):
    def __init__(self, spec: Boxes, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = Even(width, spec.classes + 1)
        self.box = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 4)])

    def forward(self, hidden: Tensor, context: Context | None, table: Tensor | None) -> HeadOutput:
        """Tokens (...,T,D), of one layer or of several, to logits (...,T,classes+1) and boxes (...,T,4)."""
        with full_precision(hidden.device):  # half precision has too few digits for a place
            x = hidden.to(self.out.weight.dtype)
            boxes = self.box[2](F.relu(self.box[1](F.relu(self.box[0](x))))).sigmoid()
        return HeadOutput(logits=self.out(hidden), boxes=boxes)


class Even(nn.Linear, Starting):
    """Scores that start nearly alike under every scheme, so that a new model starts at chance."""

    def __init__(self, width: int, scores: int) -> None:
        super().__init__(width, scores)
        self.starts["weight"] = normal(0.02)

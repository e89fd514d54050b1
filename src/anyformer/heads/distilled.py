"""Two classifiers, one on the class token and one on the distillation token (DeiT, 2012.12877)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, TokenSubset, take
from anyformer.core.linear import LinearLayer
from anyformer.errors import check_at_least
from anyformer.slots import Head, HeadOutput


class Distilled(Head):
    """The mean of the logits of the class token (trained on labels) and the distillation token (on a teacher's
    outputs).

    `model.head.both(out.hidden, out.context)` gives the two separately, for training with a teacher. Use it with
    `Patches(distill=True)`.
    """

    about: ClassVar[About | None] = About("logits = (W1 x_class + W2 x_distill) / 2", "2012.12877", "D classes")

    classes: int
    """Number of classes."""

    def check(self) -> None:
        check_at_least("Distilled", "classes", self.classes, 1, fix="give the number of labels")

    @property
    def reads_token_subset(self) -> bool:
        return True

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return DistilledModule(self, width)


class DistilledModule(nn.Module):
    def __init__(self, spec: Distilled, width: int) -> None:
        super().__init__()
        self.out = LinearLayer(width, spec.classes)
        self.distill = LinearLayer(width, spec.classes)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        labels, teacher = self.both(hidden, context)
        return HeadOutput(logits=(labels + teacher) / 2)  # (B,classes)

    def both(self, hidden: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Logits (B,classes) of the class token and of the distillation token."""
        read = take(hidden, self.tokens_read(context))  # (B,2,D), or (B,1,D) of a single token
        return self.out(read[:, 0]), self.distill(read[:, -1])

    def tokens_read(self, context: Context) -> TokenSubset:
        """The first two tokens that are not padding."""
        if context.mask is None:
            return slice(0, 2)
        first = context.mask.long().argmax(1)
        return torch.stack([first, (first + 1).clamp(max=context.mask.shape[1] - 1)], 1)  # (B,2)

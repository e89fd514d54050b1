"""Two classifiers, one on the class token and one on the distillation token (DeiT, 2012.12877)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.errors import UserError
from anyformer.heads.pooling import take
from anyformer.slots import Head, HeadOutput


class Distilled(Head):
    """The mean of the logits of the first token (trained on labels) and the second (trained on a teacher's answers).

    `model.head.both(out.hidden, out.context)` gives the two apart, for training with a teacher. Use it with
    `Patches(distill=True)`.
    """

    about: ClassVar[About | None] = About("logits = (W1 x_class + W2 x_distill) / 2", "2012.12877", "D classes")

    classes: int
    """Number of classes."""

    def check(self) -> None:
        if self.classes < 1:
            raise UserError(f"classes {self.classes} is below 1", where="Distilled", fix="give the number of labels")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return DistilledModule(self, width)


class DistilledModule(nn.Module):
    def __init__(self, spec: Distilled, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, spec.classes)
        self.distill = nn.Linear(width, spec.classes)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        labels, teacher = self.both(hidden, context)
        return HeadOutput(logits=(labels + teacher) / 2)  # (B,classes)

    def both(self, hidden: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Logits (B,classes) of the class token and of the distillation token."""
        last = hidden.shape[1] - 1  # of a single token both read that one
        first, second = hidden[:, 0], hidden[:, min(1, last)]
        if context.mask is not None:
            at = context.mask.long().argmax(1)
            first, second = take(hidden, at), take(hidden, (at + 1).clamp(max=last))
        return self.out(first), self.distill(second)

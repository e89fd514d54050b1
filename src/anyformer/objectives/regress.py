"""Regression of numbers from whole rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import check_range
from anyformer.objectives.batch import Batch
from anyformer.objectives.drop_words import drop_words
from anyformer.objectives.objective import Objective, full, with_extra
from anyformer.objectives.teachable import TargetOutputs, Teachable, row_outputs

LOSSES: dict[str, Callable[..., Tensor]] = {"squared": F.mse_loss, "absolute": F.l1_loss, "huber": F.huber_loss}


class Regression(Teachable, Objective):
    """How far off each number is; targets are scaled by the data, nan does not count."""

    measure: Literal["squared", "absolute", "huber"] = "squared"
    """How a number that is off is counted."""
    word_dropout: float = 0.0
    """Share of the tokens of a training text that are hidden; 0: none."""

    def check(self) -> None:
        check_range("Regression", "word_dropout", self.word_dropout, 0, 0.99, fix="use 0.1, or 0 for none")

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        return drop_words(batch, self.word_dropout, generator)

    def weight(self, batch: Batch) -> int:
        return int((~torch.isnan(batch.targets)).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        out = model(*batch.inputs, **batch.named)
        return with_extra(self.each(out.logits, batch.targets).sum(), out.losses, (~torch.isnan(batch.targets)).sum())

    def each(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of every number, 0 where the target is nan."""
        wanted, logits = full(targets.reshape(len(targets), -1)), full(logits)
        known = ~torch.isnan(wanted)
        off = LOSSES[self.measure](logits, wanted.nan_to_num().to(logits), reduction="none")
        return torch.where(known, off, 0.0)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return self.each(output.logits, batch.targets).mean(1)

    # ------------------------------------------------------------ with a teacher

    def target_outputs(self, model: nn.Module, batch: Batch) -> TargetOutputs:
        return row_outputs(model, batch)

    def hard_losses(self, found: TargetOutputs, batch: Batch) -> Tensor:
        return self.each(found.logits, found.targets)

    def soft_losses(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Distance between the student's and the teacher's numbers, without a temperature."""
        return self.each(logits, teacher)

    def counted(self, targets: Tensor) -> Tensor:
        return ~torch.isnan(targets.reshape(len(targets), -1))

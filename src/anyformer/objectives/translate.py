"""One sequence into another, word by word."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import Objective
from anyformer.objectives.teachable import TargetOutputs
from anyformer.objectives.words import TeachableWords, row_means, word_loss, word_losses


class Translate(TeachableWords, Objective):
    """Each target word from the source and the words before it; `label_smoothing` spreads that share over all words."""

    label_smoothing: float = 0.1
    """Share of the target probability spread over the vocabulary."""
    num_beams: int = 5
    """Beams of the beam search at the final evaluation."""
    length_penalty: float = 1.0
    """Exponent of the length by which a beam's score is divided."""

    def check(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"label_smoothing {self.label_smoothing} is not a share below 1", where="Translate", fix="use 0.1"
            )
        if self.num_beams < 1:
            raise UserError(f"num_beams {self.num_beams} is below 1", where="Translate", fix="use 5")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return word_loss(model, batch, self.label_smoothing)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return row_means(output.logits, batch.targets)

    def hard_losses(self, found: TargetOutputs, batch: Batch) -> Tensor:
        return word_losses(found, self.label_smoothing)

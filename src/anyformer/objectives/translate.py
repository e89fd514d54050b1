"""Sequence-to-sequence training, such as translation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED, Objective, with_extra
from anyformer.objectives.teachable import TargetOutputs, divergence
from anyformer.objectives.words import TeachableWords, row_means, word_loss, word_losses


class Translate(TeachableWords, Objective):
    """Each target word from the source and the words before it; `label_smoothing` spreads that share over all words.

    With `consistency` every row is passed twice, and two draws of dropout shall say the same (R-Drop, 2106.14448).
    """

    label_smoothing: float = 0.1
    """Share of the target probability spread over the vocabulary."""
    consistency: float = 0.0
    """Weight of how far two passes with different dropout are apart (R-Drop); 0: one pass."""
    num_beams: int = 5
    """Beams of the beam search at the final evaluation."""
    length_penalty: float = 1.0
    """Exponent of the length by which a beam's score is divided."""

    def check(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"label_smoothing {self.label_smoothing} is outside [0, 1)", where="Translate", fix="use 0.1"
            )
        if not 0 <= self.consistency < 1000:
            raise UserError(f"consistency {self.consistency} is not a weight", where="Translate", fix="use 5, or 0")
        if self.num_beams < 1:
            raise UserError(f"num_beams {self.num_beams} is below 1", where="Translate", fix="use 5")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        if self.consistency and model.training:
            return self.consistent_loss(model, batch)
        return word_loss(model, batch, self.label_smoothing)

    def consistent_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """R-Drop: the mean loss of two passes with different dropout, plus their symmetric KL divergence."""
        found = self.target_outputs(model, batch.map(lambda tensor: torch.cat([tensor, tensor])))
        first, second = found.logits.chunk(2)  # (B,K,V)
        counted = found.targets.chunk(2)[0] != IGNORED  # (B,K)
        apart = divergence(first, second, 1.0) + divergence(second, first, 1.0)
        hard = word_losses(found, self.label_smoothing).sum() / 2
        summed = hard + self.consistency / 4 * apart.masked_fill(~counted, 0.0).sum()
        return with_extra(summed, found.losses, counted.sum())

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return row_means(output.logits, batch.targets)

    def hard_losses(self, found: TargetOutputs, batch: Batch) -> Tensor:
        return word_losses(found, self.label_smoothing)

"""Next-token prediction at every position."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import Objective
from anyformer.objectives.words import TeachableWords, row_means, word_loss


class Causal(TeachableWords, Objective):
    """A language model: each token is predicted from those before it; targets come shifted by the data."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return word_loss(model, batch)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return row_means(output.logits, batch.targets)

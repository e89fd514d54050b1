"""Extractive question answering: start and end of the answer span in a text."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED, Objective, full, with_extra


class QuestionAnswering(Objective):
    """Cross-entropy of the first and of the last token of the answer among all tokens of a window (1810.04805).

    Targets (B,2) are two positions; both are 0, the first token, where the window does not hold the answer, and -100
    where it is not known. Padding is not a candidate, so that a window's loss does not depend on its neighbours.
    """

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        out: Any = model(*batch.inputs, **batch.named)
        return with_extra(self.each(out.logits, batch).sum(), out.losses, (batch.targets != IGNORED).sum())

    def each(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of each of the two positions, (B,2), from logits (B,T,2)."""
        masked = full(logits).masked_fill(~batch.named["mask"][..., None], -torch.inf)
        return F.cross_entropy(masked, batch.targets, ignore_index=IGNORED, reduction="none")

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return self.each(output.logits, batch).mean(1)

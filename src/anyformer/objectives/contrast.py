"""Contrastive loss over in-batch negatives: the first of each pair must match its second (CLIP, 2103.00020)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED, Objective, full


class Contrast(Objective):
    """Cross-entropy of a model's logits (B,B) along rows and along columns, half of each; the diagonal is right.

    A row whose target (B,) is -100 is not asked for, but stays among the answers of the others. The answers are those
    of one micro-batch: cut into k of them, a batch has k times fewer wrong ones.
    """

    task: ClassVar[str] = "contrast"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.each(model(*batch.inputs, **batch.named).logits, batch.targets).sum()

    def each(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of every row (B,), 0 where it is ignored."""
        logits = full(logits)
        right = torch.arange(len(logits), device=logits.device)
        both = F.cross_entropy(logits, right, reduction="none") + F.cross_entropy(logits.T, right, reduction="none")
        return torch.where(targets != IGNORED, both / 2, 0.0)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return self.each(output.logits, batch.targets)

"""Contrastive sentence embeddings: two views of each sentence, in-batch negatives (SimCSE, 2104.08821)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
from anyformer.objectives.objective import IGNORED, BatchSource, Objective, full


class SentenceContrast(Objective):
    """Cross-entropy of cosines over `temperature`: a sentence's first vector must name its second among the batch's.

    Of a single text the two vectors differ by dropout alone; of a pair they are those of its two texts. The wrong
    answers are those of one micro-batch: cut into k of them, a batch has k times fewer.
    """

    min_batch_size: ClassVar[int] = 2  # one sentence has no negatives

    temperature: float = 0.05
    """Divides the cosines: lower puts more weight on the nearest wrong answers."""

    def check(self) -> None:
        if not self.temperature > 0:
            raise UserError(f"temperature {self.temperature} is not positive", where="SentenceContrast", fix="use 0.05")

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        """Both views in one pass (2B,T): the first of every row, then the second of every row."""
        (first, mask), (second, other) = views(batch)
        tokens, seen = stack(first, mask, second, other)
        asked = torch.zeros(len(batch), dtype=torch.long)
        return replace(batch, inputs=(tokens,), targets=asked, named={"mask": seen})

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.row_losses(model(*batch.inputs, **batch.named), batch).sum()

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        first, second = full(output.pooled).chunk(2)  # (B,D)
        return self.losses_between(first, second)

    def losses_between(self, first: Tensor, second: Tensor) -> Tensor:
        """The contrastive loss of each row (B,) between vectors (B,D)."""
        cosines = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T  # (B,B)
        right = torch.arange(len(first), device=first.device)
        return F.cross_entropy(cosines / self.temperature, right, reduction="none")


View = tuple[Tensor, Tensor]  # token ids (B,T), and where they are real


def views(batch: Batch) -> tuple[View, View]:
    """The two views of each row: its two texts, or its only text twice."""
    if len(batch.inputs) == 1:
        view = batch.inputs[0], batch.named["mask"]
        return view, view
    first, mask = batch.inputs[0], batch.named["source_mask"]
    start = batch.inputs[1][:, :1]  # a pair is stored as source and target, which lacks its first token
    there = batch.targets != IGNORED
    second = batch.targets.where(there, 0)
    if bool(there.any()) and bool((first[:, :1] == start).all()):
        second, there = torch.cat([start, second], 1), torch.cat([torch.ones_like(start, dtype=torch.bool), there], 1)
    return (first, mask), (second, there)


def stack(first: Tensor, mask: Tensor, second: Tensor, other: Tensor) -> View:
    """Two views as one batch (2B,T), padded to the longer."""
    width = max(first.shape[1], second.shape[1])
    tokens = [F.pad(view, (0, width - view.shape[1])) for view in (first, second)]
    seen = [F.pad(view, (0, width - view.shape[1]), value=False) for view in (mask, other)]
    return torch.cat(tokens), torch.cat(seen)

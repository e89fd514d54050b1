"""Cross-entropy over the vocabulary, shared by the objectives that predict text."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED, full, with_extra
from anyformer.objectives.teachable import TargetOutputs, Teachable, divergence

# Most logits in memory at once; beyond that the loss is computed in chunks of tokens. On a CPU, allocations above 32 MB
# go back to the system and are mapped again at every step, which costs more than chunking.
HELD, HELD_CPU = 2**27, 2**22


def word_loss(model: Any, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """Summed cross-entropy of the targets (B,T) that are not -100."""
    return score_words(model.before_head(*batch.inputs, **batch.named), model.head, model.table(), batch, smoothing)


def score_words(out: Any, head: Any, table: Tensor | None, batch: Batch, smoothing: float = 0.0) -> Tensor:
    """`word_loss` from the output of `before_head`, with a language-model head tied to `table`."""
    hidden, targets = few_targets(out.hidden, batch)
    counted = (targets != IGNORED).sum()
    rows = head.rows(table)
    eager_cpu = rows.device.type == "cpu" and not torch.compiler.is_compiling()
    if targets.numel() * rows.shape[0] > (HELD_CPU if eager_cpu else HELD):
        summed = head.loss(hidden, targets, table, smoothing) * counted
        return with_extra(summed, out.losses, counted)
    logits = head(hidden, out.context, table).logits  # (B,T,V)
    summed = F.cross_entropy(
        full(logits.flatten(0, -2)), targets.flatten(), ignore_index=IGNORED, reduction="sum",
        label_smoothing=smoothing,
    )  # fmt: skip
    return with_extra(summed, out.losses, counted)


class TeachableWords(Teachable):
    """Distillation for objectives that predict text."""

    def target_outputs(self, model: Any, batch: Batch) -> TargetOutputs:
        """Logits (B,K,V) at the targets (B,K), not chunked."""
        out = model.before_head(*batch.inputs, **batch.named)
        hidden, targets = few_targets(out.hidden, batch)
        return TargetOutputs(model.head(hidden, out.context, model.table()).logits, targets, hidden, out.losses)

    def hard_losses(self, found: TargetOutputs, batch: Batch) -> Tensor:
        return word_losses(found)

    def soft_losses(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """A teacher with a padded vocabulary has more logits than the student; the extra ones are dropped."""
        return divergence(logits, teacher[..., : logits.shape[-1]], temperature)


def word_losses(found: TargetOutputs, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of every target (B,K), 0 where it is ignored."""
    return F.cross_entropy(
        full(found.logits.transpose(1, 2)), found.targets, ignore_index=IGNORED, reduction="none",
        label_smoothing=smoothing,
    )  # fmt: skip


def few_targets(hidden: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Hidden states (B,K,D) and targets (B,K) of the tokens that count, if a row has at most K of them.

    Logits of the other tokens would be most of the work of a small model. K is known without a sync, so that all
    batches have one shape; rows with fewer targets are padded with ignored tokens.
    """
    most, targets = batch.most_targets, batch.targets
    if most is None or most >= targets.shape[1]:
        return hidden, targets
    places = (targets == IGNORED).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]  # (B,K), in their order
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1])), targets.gather(1, places)


def row_means(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of each row (B,) of logits (B,T,C) over its targets (B,T) that count."""
    each = F.cross_entropy(full(logits.transpose(1, 2)), targets, ignore_index=IGNORED, reduction="none")  # (B,T)
    counted = (targets != IGNORED).sum(1).clamp(min=1)
    return each.sum(1) / counted

"""Token classification: a tag for every word."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.heads.crf import log_likelihood, log_marginals
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED, Objective, full, with_extra
from anyformer.objectives.teachable import TargetOutputs, Teachable, divergence
from anyformer.objectives.words import row_means, word_losses


class Tag(Teachable, Objective):
    """Cross-entropy at the first piece of each word; targets (B,T) are -100 elsewhere."""

    label_smoothing: float = 0.0
    """Share of the target probability spread over all classes."""

    def check(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise UserError(f"label_smoothing {self.label_smoothing} is outside [0, 1)", where="Tag", fix="use 0")

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        out = model(*batch.inputs, **batch.named)
        if out.transitions is not None:
            return with_extra(-likelihoods(out, batch).sum(), out.losses, (batch.targets != IGNORED).sum())
        summed = F.cross_entropy(
            full(out.logits.flatten(0, 1)), batch.targets.flatten(), ignore_index=IGNORED, reduction="sum",
            label_smoothing=self.label_smoothing,
        )  # fmt: skip
        return with_extra(summed, out.losses, (batch.targets != IGNORED).sum())

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        if output.transitions is not None:
            return -likelihoods(output, batch) / (batch.targets != IGNORED).sum(1).clamp(min=1)
        return row_means(output.logits, batch.targets)

    # ------------------------------------------------------------ with a teacher

    def target_outputs(self, model: nn.Module, batch: Batch) -> TargetOutputs:
        out = model(*batch.inputs, **batch.named)
        logits = out.logits if out.transitions is None else log_marginals(*chain_scores(out, batch))
        return TargetOutputs(logits, batch.targets, out.hidden, out.losses)

    def hard_losses(self, found: TargetOutputs, batch: Batch) -> Tensor:
        return word_losses(found, self.label_smoothing)

    def soft_losses(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        return divergence(logits, teacher, temperature)


def likelihoods(out: Any, batch: Batch) -> Tensor:
    """CRF log-likelihood (B,) of each sentence's tags."""
    return log_likelihood(*chain_scores(out, batch), batch.targets)


def chain_scores(out: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of the CRF in fp32: logits (B,T,C), transitions (C+1,C+1), and the token mask."""
    return full(out.logits), full(out.transitions), batch.named["mask"]

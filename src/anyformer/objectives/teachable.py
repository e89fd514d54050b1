"""Teachable: an objective whose answers a teacher can give too, so that a student may learn from both (`Distill`)."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.model import ModelModule, Output
from anyformer.heads.pooling import pool
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED, full
from anyformer.slots import Losses


class TargetOutputs(NamedTuple):
    """What a model gives for the targets of a batch. A row has one target or K of them, by the objective."""

    logits: Tensor  # (B,C) or (B,K,C)
    targets: Tensor  # (B,), (B,C) or (B,K)
    hidden: Tensor  # (B,D) the mean over a row's tokens, or (B,K,D) the token that is asked for
    losses: Losses | None  # the model's own, of experts


class Teachable:
    """What `Distill` asks of a student's own objective. Losses are of each target, and 0 where one does not count."""

    def target_outputs(self, model: nn.Module, batch: Batch) -> TargetOutputs:
        """One pass over the batch, as the student and the teacher make it."""
        raise NotImplementedError

    def hard_losses(self, found: TargetOutputs, batch: Batch) -> Tensor:
        """How far the logits are from the targets, as in training without a teacher."""
        raise NotImplementedError

    def soft_losses(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """How far the logits are from the teacher's, in the shape of `hard_losses`."""
        raise NotImplementedError

    def counted(self, targets: Tensor) -> Tensor:
        """Which targets count, in the shape of `hard_losses`; they sum up to the weight of the batch."""
        return targets != IGNORED


def row_outputs(model: nn.Module, batch: Batch) -> TargetOutputs:
    """Logits (B,C) of whole rows."""
    out: Output
    if isinstance(model, ModelModule) and model.skips_tokens:  # the mean is over all tokens, read by the head or not
        out = model.before_head(*batch.inputs, **batch.named)
        out.logits = model.head(out.hidden, out.context, model.table()).logits
    else:
        out = model(*batch.inputs, **batch.named)
    assert out.logits is not None
    hidden = out.hidden.flatten(1)
    if out.hidden.dim() == 3:
        assert out.context is not None
        hidden = pool(out.hidden, out.context, "mean")
    return TargetOutputs(out.logits, batch.targets, hidden, out.losses)


def divergence(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of logits (...,C) at a temperature, times its square (1503.02531, section 2).

    The square keeps the size of the gradients while the temperature changes.

    >>> import torch
    >>> float(divergence(torch.zeros(2), torch.zeros(2), temperature=3.0))
    0.0
    """
    mine, theirs = ((full(each) / temperature).log_softmax(-1) for each in (logits, teacher))
    return F.kl_div(mine, theirs, reduction="none", log_target=True).sum(-1) * temperature**2

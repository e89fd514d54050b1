"""Teachable: an objective that can be distilled from a teacher (`Distill`)."""

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
    """A model's outputs at the targets of a batch: one target per row or K, depending on the objective."""

    logits: Tensor  # (B,C) or (B,K,C)
    targets: Tensor  # (B,), (B,C) or (B,K)
    hidden: Tensor  # (B,D) the mean over a row's tokens, or (B,K,D) at the target tokens
    losses: Losses | None  # the model's auxiliary losses, of experts


class Teachable:
    """Interface of objectives that `Distill` supports. Losses are per target, 0 where it is ignored."""

    def target_outputs(self, model: nn.Module, batch: Batch) -> TargetOutputs:
        """The forward pass of the student or the teacher."""
        raise NotImplementedError

    def hard_losses(self, found: TargetOutputs, batch: Batch) -> Tensor:
        """The loss against the targets, as without a teacher."""
        raise NotImplementedError

    def soft_losses(self, logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """The loss against the teacher's logits, in the shape of `hard_losses`."""
        raise NotImplementedError

    def counted(self, targets: Tensor) -> Tensor:
        """Which targets count, in the shape of `hard_losses`; they sum up to the weight of the batch."""
        return targets != IGNORED


def row_outputs(model: nn.Module, batch: Batch) -> TargetOutputs:
    """Logits (B,C) of whole rows."""
    out: Output
    if isinstance(model, ModelModule) and model.skips_tokens:  # `pool` needs all tokens, read by the head or not
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

    The square keeps the scale of the gradients independent of the temperature.

    >>> import torch
    >>> float(divergence(torch.zeros(2), torch.zeros(2), temperature=3.0))
    0.0
    """
    mine, theirs = ((full(each) / temperature).log_softmax(-1) for each in (logits, teacher))
    return F.kl_div(mine, theirs, reduction="none", log_target=True).sum(-1) * temperature**2

"""Which tokens were replaced? A loss on every token, and the corruption that asks it (ELECTRA, 2003.10555)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED, Objective, full


class ReplacedTokenDetection(Objective):
    """Binary cross-entropy of one logit a token (B,T,1); targets (B,T) are 1 replaced, 0 original, -100 padding."""

    task: ClassVar[str] = "replaced"

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.each(model(*batch.inputs, **batch.named).logits, batch.targets).sum()

    def each(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of every token (B,T), 0 where it does not count."""
        scores = full(logits[..., 0])
        known = targets != IGNORED
        each = F.binary_cross_entropy_with_logits(scores, targets.where(known, 0).to(scores), reduction="none")
        return torch.where(known, each, 0.0)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        counted = (batch.targets != IGNORED).sum(1).clamp(min=1)
        return self.each(output.logits, batch.targets).sum(1) / counted


def corrupt(
    tokens: Tensor, logits: Tensor, chosen: Tensor, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Ids (B,T) with a sample of a generator's logits (B,T,V) where `chosen` (B,T) is True, and what was replaced.

    The second answer is the targets (B,T) of `Detection`: a sample that happens to be the token itself counts as
    original. No gradient goes back through the sampling.
    """
    shares = full(logits.detach())[chosen].softmax(-1)  # (chosen, V)
    drawn = torch.multinomial(shares, 1, generator=generator)[:, 0] if len(shares) else tokens.new_zeros(0)
    corrupted = tokens.masked_scatter(chosen, drawn.to(tokens.dtype))
    return corrupted, (corrupted != tokens).long()

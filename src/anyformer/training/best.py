"""How a run stands: the figures of its steps and evaluations, and the best so far."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from anyformer.evaluation.metrics import better
from anyformer.training.step import Moment


@dataclass
class Standing:
    """What has been judged so far; saved with every checkpoint."""

    metric: str
    best: float | None = None
    best_step: int | None = None
    since: int = 0  # evaluations since the best one
    best_loss: float | None = None

    def take(self, value: float, loss: float | None, step: int) -> bool:
        """Whether this is the best so far: by the metric, and by the loss where the metric is the same."""
        if self.best is None or better(self.metric, value, self.best) or self.tie_won(value, loss):
            self.best, self.best_loss, self.best_step, self.since = value, loss, step, 0
            return True
        self.since += 1
        return False

    def tie_won(self, value: float, loss: float | None) -> bool:
        return value == self.best and loss is not None and self.best_loss is not None and loss < self.best_loss


def line_of(moment: Moment) -> dict[str, Any]:
    """A step as metrics.jsonl has it: nothing that depends on the clock, so that two files can be compared."""
    return {"step": moment.step, "loss": float(moment.loss), "lr": moment.rate, "grad_norm": float(moment.norm),
            "rows": fingerprint(moment.rows),
            **{f"{name}_loss": float(loss) for name, loss in moment.losses.items()}}  # fmt: skip


def fingerprint(rows: list[torch.Tensor]) -> str:
    """A short hash of the rows of a step, to compare orders by."""
    return hashlib.sha256(torch.cat(rows).numpy().tobytes()).hexdigest()[:12]

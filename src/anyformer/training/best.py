"""Results of a run's steps and evaluations, and its best checkpoint so far."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from anyformer.data.order import Order
from anyformer.data.preprocess import Preprocess
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.bootstrap import standard_error
from anyformer.evaluation.metric_directions import better
from anyformer.tasks import Task
from anyformer.training.step import StepResult

LEAST_EVALUATIONS = 3  # evaluations without improvement before patience can end the run; a single one may be bad luck


class EvaluationResult(NamedTuple):
    """The result of one evaluation of a checkpoint."""

    value: float  # of the selection metric
    loss: float | None  # the tie-breaker where metrics are too close to call
    error: float  # standard error of the metric on this many validation rows; 0 if unknown


@dataclass
class BestCheckpoint:
    """The best checkpoint so far; saved with every checkpoint.

    Checkpoints whose metric lies within one standard error of the highest are a tie, and the loss decides between them:
    on 300 rows an accuracy is known to 2 %, and the best of twenty is the luckiest of them.
    """

    metric: str
    best: float | None = None
    best_step: int | None = None
    since: int = 0  # evaluations since the metric or the loss last improved on its best
    best_loss: float | None = None
    top: float | None = None  # the best metric of any checkpoint, kept or not
    top_step: int | None = None
    error: float = 0.0  # standard error of `top`
    least_loss: float | None = None
    moved_step: int | None = None  # step at which the metric or the loss last improved on its best

    def take(self, found: EvaluationResult, step: int) -> bool:
        """Record an evaluation; returns whether its checkpoint is the new best."""
        self.note_progress(found, step)
        if not self.is_tie(found.value):
            return False
        if self.best is not None and self.is_tie(self.best) and not self.wins_tie(found):
            return False
        self.best, self.best_loss, self.best_step = found.value, found.loss, step
        return True

    def note_progress(self, found: EvaluationResult, step: int) -> None:
        """Track the best metric and the lowest loss of any checkpoint."""
        higher = self.top is None or better(self.metric, found.value, self.top)
        lower = found.loss is not None and (self.least_loss is None or found.loss < self.least_loss)
        if higher:
            self.top, self.top_step, self.error = found.value, step, found.error
        if lower:
            self.least_loss = found.loss
        self.since = 0 if higher or lower else self.since + 1
        self.moved_step = step if higher or lower else self.moved_step

    def is_tie(self, value: float) -> bool:
        """Whether a metric is within one standard error of the best."""
        assert self.top is not None
        return value == self.top or not better(self.metric, self.top, value) or abs(self.top - value) <= self.error

    def wins_tie(self, found: EvaluationResult) -> bool:
        assert self.best is not None
        if found.loss is None or self.best_loss is None:
            return better(self.metric, found.value, self.best)
        return found.loss < self.best_loss

    def is_out_of_patience(self, patience: float | None, order: Order, done: int) -> bool:
        """Whether the metric and the loss have not improved for enough passes over the data and enough evaluations."""
        if patience is None or self.moved_step is None or self.since < LEAST_EVALUATIONS:
            return False
        return order.passes(self.moved_step, done) >= patience

    def explain_stop(self, order: Order, done: int, total: int) -> str:
        """Why a run that is out of patience ends before its last step."""
        passes = order.passes(self.moved_step or 0, done)
        what = "loss" if self.metric == "loss" else f"{self.metric} or loss"
        return (
            f"stopped early at step {done:,} of {total:,}: no better {what} of the validation rows in "
            f"{passes:,.0f} passes over the data; more would only overfit (training.patience)"
        )

    def explain(self) -> str:
        """Why this checkpoint was kept although another had the better metric; empty if it has the best."""
        if self.best is None or self.top is None or self.best_step == self.top_step:
            return ""
        return (
            f"step {self.best_step:,}, {self.metric} {self.best:.4g}: within one standard error ({self.error:.2g}) of "
            f"the best, {self.top:.4g} at step {self.top_step:,}, and with the lower loss"
        )


def score_answers(task: Task, answers: Answers, metric: str) -> tuple[dict[str, float], EvaluationResult]:
    """All metrics of the validation rows, and the result that selects checkpoints."""
    scores = task.all_metrics(answers)
    if metric not in scores:
        raise UserError(f"unknown metric {metric!r} of {task.title}", where="training.metric",
                        fix=did_you_mean(metric, scores))  # fmt: skip
    sums = None if answers.predicted is None else task.row_sums(answers, metric)
    error = 0.0 if sums is None else standard_error(sums)
    return scores, EvaluationResult(scores[metric], task.selection_loss(answers), error)


def choosing_metric(task: Task, preprocess: Preprocess) -> str:
    """The default metric for selecting a task's checkpoints."""
    beside = task.metrics_beside(preprocess)
    return beside[0] if beside else task.selection_metric(multi=preprocess.multi, labels=preprocess.answer_names)


def line_of(step_result: StepResult) -> dict[str, Any]:
    """A step's line in metrics.jsonl, without anything time-dependent, so that the files of two runs can be
    compared."""
    return {"step": step_result.step, "loss": float(step_result.loss), "lr": step_result.lr,
            "grad_norm": float(step_result.norm),
            "rows": fingerprint(step_result.rows),
            **{f"{name}_loss": float(loss) for name, loss in step_result.losses.items()},
            **{f"probe/{name}": value for name, value in step_result.probe.items()}}  # fmt: skip


def fingerprint(rows: list[torch.Tensor]) -> str:
    """A short hash of a step's rows, to compare data orders."""
    return hashlib.sha256(torch.cat(rows).numpy().tobytes()).hexdigest()[:12]

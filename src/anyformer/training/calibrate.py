"""Calibration after the last step: temperatures and the threshold, fitted on the validation rows, saved with the
run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from anyformer.data.calibration import CALIBRATION_FILE, Calibration
from anyformer.data.preprocess import Preprocess
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.bootstrap import Interval, RowSums
from anyformer.evaluation.calibration import probability_errors
from anyformer.evaluation.metric_directions import better
from anyformer.evaluation.sentences import show_difference
from anyformer.evaluation.thresholds import USUAL, choose_threshold
from anyformer.tasks.base import Task
from anyformer.training.run.folder import RunFolder
from anyformer.training.settings import Training

LEAST_ROWS = 20  # validation rows below which nothing is fitted


@dataclass(frozen=True)
class FittedCalibration:
    """The fitted calibration, the number of rows it was fitted on, and the gain of the threshold."""

    calibration: Calibration
    rows: int
    metric: str
    tried: float | None = None  # the best threshold, whether adopted or not
    gain: Interval | None = None

    def lines(self) -> list[str]:
        """The decision and its reason, as log lines."""
        said = ", ".join(f"{one:.3g}" for one in self.calibration.temperature[:8])
        more = f" and {len(self.calibration.temperature) - 8} more" if len(self.calibration.temperature) > 8 else ""
        lines = [f"probs    temperature {said}{more}, fitted on {self.rows:,} validation rows"]
        if self.tried is None or self.gain is None:
            return lines if self.calibration.threshold is None else [
                *lines, f"answers  yes from {self.calibration.threshold:g} on, as asked"]  # fmt: skip
        what = f"{self.metric} {show_difference(self.gain)} on validation rows"
        if self.calibration.threshold is None:
            return [*lines, f"answers  yes from {USUAL} on; from {self.tried:g} on would be {what}: not beyond chance"]
        return [*lines, f"answers  yes from {self.tried:g} on in place of {USUAL}: {what}"]

    def facts(self) -> dict[str, Any]:
        """The entry of evaluation.json."""
        return {
            "temperature": list(self.calibration.temperature), "threshold": self.calibration.threshold,
            "rows": self.rows, "metric": self.metric, "tried": self.tried,
            "gain": None if self.gain is None else self.gain.facts(),
        }  # fmt: skip


def fit_calibration(
    task: Task, answers: Answers, preprocess: Preprocess, settings: Training, metric: str
) -> FittedCalibration | None:
    """Fit calibration on the validation rows; None if the task has no probabilities or there are too few rows."""
    rows = 0 if answers.logits is None else int(task.has_truth(answers).sum())
    temperatures = None if rows < LEAST_ROWS else task.fit_temperatures(answers)
    if temperatures is None:
        return None
    found = Calibration(temperature=temperatures)
    if not task.has_threshold(preprocess) or settings.threshold is None:
        return FittedCalibration(found, rows, metric)
    if settings.threshold != "auto":
        return FittedCalibration(found.replace(threshold=float(settings.threshold)), rows, metric)
    return with_threshold(task, answers, FittedCalibration(found, rows, metric))


def with_threshold(task: Task, answers: Answers, fitted: FittedCalibration) -> FittedCalibration:
    """The threshold that maximises the metric, adopted only if its gain is significant."""

    def score_at(share: float) -> RowSums | None:
        said = task.calibrate(answers, fitted.calibration.replace(threshold=share))
        return task.row_sums(replace(said, probability=None), fitted.metric)

    if score_at(USUAL) is None:  # a metric independent of the threshold, such as AUC
        return fitted
    tried, gain = choose_threshold(fitted.metric, score_at)  # type: ignore[arg-type]
    fitted = replace(fitted, tried=tried, gain=gain)
    if gain.has_zero or not better(fitted.metric, gain.value, 0.0):
        return fitted
    return replace(fitted, calibration=fitted.calibration.replace(threshold=tried))


def write_calibration(folder: RunFolder, weights: str, calibration: Calibration) -> None:
    """Save the calibration with the run, with the name of the weights that it belongs to."""
    folder.write_json(CALIBRATION_FILE, {"weights": weights, "calibration": calibration.to_dict()})


def measure_effect(before: Answers, after: Answers) -> dict[str, list[float]]:
    """Log-loss and calibration error, each before and after calibration."""
    sides = probability_errors(before), probability_errors(after)
    return {name: [sides[0][name], sides[1][name]] for name in sides[0]}


def effect_line(split: str, effect: dict[str, list[float]]) -> str:
    """`measure_effect` as a log line."""
    said = ", ".join(f"{name.replace('_', ' ')} {a:.3g} to {b:.3g}" for name, (a, b) in effect.items())
    return f"         {split}: {said}"

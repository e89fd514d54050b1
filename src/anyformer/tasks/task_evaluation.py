"""How a task's models are evaluated: metrics, checkpoint selection, baselines, and the report."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from torch import nn

from anyformer.data.calibration import Calibration
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.preprocess import Preprocess
from anyformer.evaluation.answers import Answers, RowMetrics
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.bootstrap import Interval, RowSums, compare_rows, estimate_interval
from anyformer.evaluation.facts import digits, plain, short
from anyformer.evaluation.metrics import MOST_NATS
from anyformer.log import Log
from anyformer.tasks.trained_model import TrainedModel

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

WORST = 20  # rows listed in a report with the largest errors
LEAST_SECONDS = 0.5  # below it no baseline is trained


class Baseline(NamedTuple):
    """A baseline's name, its metrics and the seconds it took; without metrics the name tells why there are none.

    `difference` is the model's main metric minus the baseline's, on the same rows; None if it is not known by row.
    `beside` are the differences of further metrics.
    """

    name: str
    metrics: dict[str, float]
    seconds: float
    difference: Interval | None = None
    beside: Mapping[str, Interval] = {}

    def facts(self) -> dict[str, Any]:
        """As saved in evaluation.json."""
        found = {"name": self.name, "metrics": self.metrics, "seconds": round(self.seconds, 2)}
        if self.difference is not None:
            found["difference"] = self.difference.facts()
        if self.beside:
            found["beside"] = {name: one.facts() for name, one in self.beside.items()}
        return found


class TaskEvaluation:
    """The evaluation of a task's models; every `Task` is one. A task defines the metrics and the baselines."""

    name: ClassVar[str] = ""

    # ------------------------------------------------------------ answers and metrics

    @abstractmethod
    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The model's answers for some rows beside the targets; `decode` also generates texts, which is slow."""
        raise NotImplementedError

    @abstractmethod
    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        """Every metric defined for these answers, the main one first; none without rows."""
        raise NotImplementedError

    def metrics(self, answers: Answers) -> dict[str, float]:
        """The metrics, with those that came with the answers."""
        return RowMetrics(self.compute_metrics(answers) | answers.extra, answers)

    def all_metrics(self, answers: Answers) -> dict[str, float]:
        """The metrics and the loss; answers without generated texts have the loss alone."""
        found = self.metrics(answers) if answers.predicted is not None else {}
        if answers.tokens:
            found.setdefault("loss", answers.nats / answers.tokens)
            found.setdefault("perplexity", math.exp(min(MOST_NATS, found["loss"])))
        elif answers.losses is not None and len(answers.losses):
            found.setdefault("loss", float(answers.losses.mean()))
        return found

    @abstractmethod
    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        """The main metric of the task."""
        raise NotImplementedError

    def selection_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        """The metric that selects the best checkpoint, computed at every evaluation."""
        return self.main_metric(multi=multi, labels=labels)

    def metrics_beside(self, preprocess: Preprocess) -> tuple[str, ...]:
        """Metrics that suit this data better than the main one: the first selects the checkpoint instead, and all are
        compared with the baselines; none if the main one suits it."""
        return ()

    def selection_loss(self, answers: Answers) -> float | None:
        """The loss that decides between checkpoints whose metrics are too close to call."""
        return self.all_metrics(answers).get("loss")

    def row_sums(self, answers: Answers, metric: str) -> RowSums | None:
        """A metric's terms by row, for its standard error and confidence interval; None if it is no function of row
        sums."""
        return None

    def fit_temperatures(self, answers: Answers) -> tuple[float, ...] | None:
        """Temperatures that the logits should be divided by, fitted on validation rows; None without probabilities."""
        return None

    def has_threshold(self, preprocess: Preprocess) -> bool:
        """Whether predictions are binary, so that a threshold can be chosen."""
        return False

    def calibrate(self, answers: Answers, calibration: Calibration) -> Answers:
        """The same answers with other temperatures and another threshold; only for tasks that fit them."""
        return answers

    def notes(self, answers: Answers) -> list[str]:
        """Notes on the metrics for the reader: what was left out, and why."""
        return []

    def has_truth(self, answers: Answers) -> np.ndarray:
        """Mask of rows that can be evaluated because their target is known."""
        return np.ones(len(answers.truth), dtype=bool)

    def examples_of(self, frame: Frame, preprocess: Preprocess, log: Log) -> Examples | None:
        """Examples of a whole table with known targets, such as windows of a series; None if each row is one."""
        return None

    def evaluate_files(
        self, evaluator: Evaluator, predictor: TrainedModel, files: Sequence[Path], log: Log
    ) -> Answers | None:
        """Answers on files with known targets that are not rows of a table; None if they are."""
        return None

    # ------------------------------------------------------------ baselines

    def truth(self, examples: Examples) -> Any:
        """The targets of the rows, in the form that `Answers` have them."""
        return []

    def raw_rows(self, examples: Examples) -> RawRows:
        """The inputs of a simple learner for the same rows."""
        return RawRows()

    @abstractmethod
    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """The prediction without any input: its name, in words that finish "better than ...", and its metrics.

        `truth` are the training targets; `test` the raw rows of `answers`. No metrics if there is none.
        """
        raise NotImplementedError

    @abstractmethod
    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A strong simple learner for this kind of data; without metrics the name tells why there are none."""
        raise NotImplementedError

    def baselines(
        self, answers: Answers, train: Examples, *, strong: bool = True, seconds: float | None = None,
        metric: str | None = None, beside: Sequence[str] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Both baselines on the rows of `answers`, as saved in evaluation.json; the strong one within `seconds`. The
        model's lead is given for `metric`, or the main one, and for those in `beside`."""
        truth, before, after = self.truth(train), self.raw_rows(train), self.raw_rows(answers.examples)
        started = time.perf_counter()
        name, scores = self.trivial_baseline(truth, answers, before, after)
        took = time.perf_counter() - started

        def stand(name: str, scores: Mapping[str, float], took: float) -> dict[str, Any]:
            others = {one: self.compare(answers, scores, one) for one in beside if one in scores}
            known = {one: difference for one, difference in others.items() if difference is not None}
            return Baseline(name, dict(scores), took, self.compare(answers, scores, metric), known).facts()

        found = {"trivial": stand(name, scores, took)}
        if strong:
            started = time.perf_counter()
            name, scores = "not learned: the time of the run was up", {}
            if seconds is None or seconds > LEAST_SECONDS:
                name, scores = self.strong_in_time(truth, answers, before, after, seconds)
            took = time.perf_counter() - started
            found["strong"] = stand(name, scores, took)
        return found

    def find_interval(self, answers: Answers, metric: str | None = None) -> Interval | None:
        """A metric, by default the main one, with its bootstrap interval; None if it is no function of row sums."""
        main = metric or next(iter(self.all_metrics(answers)), "")
        sums = None if answers.predicted is None else self.row_sums(answers, main)
        return None if sums is None else estimate_interval(sums)

    def compare(self, answers: Answers, others: Mapping[str, float], metric: str | None = None) -> Interval | None:
        """A metric of the model, by default the main one, minus another's on the same rows, by paired bootstrap."""
        if not isinstance(others, RowMetrics) or answers.predicted is None or others.answers.predicted is None:
            return None
        main = metric or next(iter(others), "")
        ours, theirs = (self.row_sums(side, main) for side in (answers, others.answers))
        if ours is None or theirs is None or len(ours.values) != len(theirs.values):
            return None
        return compare_rows(ours, theirs)

    def baseline_seconds(self, train: Examples) -> float:
        """The estimated training time of the strong baseline, if it learns from rows, reserved from a time budget."""
        return 0.0

    def strong_in_time(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, seconds: float | None
    ) -> tuple[str, dict[str, float]]:
        """The strong baseline trained on as much as `seconds` allow, if it is slow enough to matter."""
        return self.strong_baseline(truth, answers, train, test)

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        """What the report shows of the answers, as JSON: confusion, calibration, labels, numbers."""
        return {"rows": len(answers.predicted)}

    def report_facts(self, answers: Answers) -> dict[str, Any]:
        """Metrics, facts and worst rows, as JSON for evaluation.json."""
        found: dict[str, Any] = {"task": self.name, "multi": answers.multi, "metrics": self.metrics(answers)}
        found |= {"notes": self.notes(answers)} | self.facts(answers)
        return plain(found | {"worst": self.worst_rows(answers), "worst_by": self.worst_by(answers)})

    def row_errors(self, answers: Answers) -> Sequence[float] | np.ndarray:
        """The error of each row, if there are no losses."""
        return []

    def error_name(self, answers: Answers) -> str:
        """The name of `row_errors`, as a column heading."""
        return "loss"

    def worst_by(self, answers: Answers) -> str:
        """The name of the error that ranks the worst rows."""
        return "loss" if answers.losses is not None else self.error_name(answers)

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        """The target and the prediction of one row, as text."""
        return {"truth": short(answers.truth[row]), "predicted": short(answers.predicted[row])}

    def worst_rows(self, answers: Answers, most: int = WORST) -> list[dict[str, Any]]:
        """The rows with the largest errors, worst first; by loss if known, else by `row_errors`."""
        errors = self.row_errors(answers) if answers.losses is None else answers.losses
        badness = np.asarray(errors, np.float64)
        badness = np.where(np.isfinite(badness), badness, -np.inf)
        found = []
        for row in np.argsort(-badness, kind="stable")[:most].tolist():
            if not badness[row] > 0:
                break
            entry: dict[str, Any] = {"row": row, "loss": digits(float(badness[row]))}
            if answers.examples is not None:
                entry |= {"place": short(answers.examples.place(row)), "shown": short(answers.examples.shown(row))}
            found.append(entry | self.describe(answers, row))
        return found

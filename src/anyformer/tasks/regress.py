"""Regression: one or several numbers per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data.columns.cells import as_words
from anyformer.data.columns.written import numbers_written
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.data.targets import ABSENT, NOT_NUMBER, Values, read_numbers
from anyformer.errors import UserError
from anyformer.evaluation import learners
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.bootstrap import RowSums
from anyformer.evaluation.facts import number_facts
from anyformer.evaluation.metrics import number_metrics
from anyformer.evaluation.row_sums import number_sums
from anyformer.heads import Regress as NumbersHead
from anyformer.log import Log
from anyformer.objectives import Regression
from anyformer.slots import Network
from anyformer.tasks.base import Task
from anyformer.tasks.network import pooled_style, preset_for_rows
from anyformer.tasks.ngram_weights import fit_n_grams
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.shapes import finite
from anyformer.tasks.target_look import Match, TargetLook


class NumberAnswers(Task):
    """Base of tasks whose predictions are numbers."""

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return number_metrics(answers)

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "rmse"

    def row_sums(self, answers: Answers, metric: str) -> RowSums | None:
        return number_sums(answers, metric)

    def has_truth(self, answers: Answers) -> np.ndarray:
        truth = np.asarray(answers.truth)
        return np.isfinite(truth).any(axis=1) if truth.ndim > 1 else np.isfinite(truth)

    def metrics_of(self, answers: Answers, predicted: np.ndarray) -> dict[str, float]:
        """Metrics of other predictions for the same rows."""
        return self.metrics(Answers(self.name, answers.truth, predicted, labels=answers.labels, scale=answers.scale))

    def facts(self, answers: Answers) -> dict[str, Any]:
        return number_facts(answers)

    def error_name(self, answers: Answers) -> str:
        return "off by"

    def row_errors(self, answers: Answers) -> Sequence[float] | np.ndarray:
        truth, predicted = np.asarray(answers.truth), np.asarray(answers.predicted)
        return np.abs(predicted - truth).reshape(len(truth), -1).mean(1) if len(truth) else []

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        sides = [", ".join(f"{value:.5g}" for value in np.asarray(part[row]).reshape(-1).tolist())
                 for part in (answers.truth, answers.predicted)]  # fmt: skip
        return {"truth": sides[0], "predicted": sides[1]}


class RegressTask(NumberAnswers, RowTask):
    """Numbers, in the units of the training file."""

    name = "regress"
    title = "regression"
    verb = "gives numbers"
    has_plain_logits = True
    splits_by_time = True
    objective = Regression
    scales_numbers = True

    # ------------------------------------------------------------ which data

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        if seen.several:
            return self.match_columns(seen, asked)
        if seen.is_list:
            return None
        if asked:
            if not len(seen.known_numbers):
                raise UserError(f"{seen.name} holds no numbers", where="--task regress", fix="use --task classify")
            return Match()
        if not seen.is_numeric or seen.few_whole_numbers:
            return None
        why = f"{seen.name} is a number with {seen.facts[seen.name].counted} different values"
        if seen.may_be_codes:
            why += f", and {seen.quantity}; if they are classes: --task classify"
        return Match("one", why)

    def match_columns(self, seen: TargetLook, asked: bool) -> Match | None:
        """Several columns of numbers, unless all of them are binary."""
        if not asked and seen.not_switches is None:
            return None
        for name in seen.names:
            if not np.isfinite(numbers_written(seen.frame.column(name), seen.number_form(name))).any():
                raise UserError(
                    f"{name} holds no numbers", where="--target", fix="several targets are all numbers, or all 0 and 1"
                )
        return Match("one", f"{len(seen.names)} columns of numbers")

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        columns = [frame.column(name) for name in decision.target]
        lost = ~np.isfinite(np.stack(read_numbers(frame, decision.target, decision.number_forms), 1)).any(1)
        said = np.zeros(len(frame), bool)
        for column in columns:
            said |= ~as_words(column).is_null().to_numpy()
        return [(ABSENT, lost & ~said), (NOT_NUMBER, lost & said)]

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Values:
        return Values.fit(frame, decision.target, scale=settings.columns.target_scale, forms=decision.number_forms)

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return preset_for_rows(sizes, gpu=gpu)

    def fit_weights(self, spec: Network, data: Prepared, log: Log) -> dict[str, Tensor]:
        """Fit the n-grams of texts by ridge regression, if the head has them."""
        plain = Regression()
        return fit_n_grams(spec, data, lambda said, t: plain.each(said, t).sum(1) / 2, plain.counted, log)

    def head(self, own: Any, pool: str, sizes: Sizes) -> Any:
        return NumbersHead(outputs=sizes.outputs, **pooled_style(own, pool))

    # ------------------------------------------------------------ evaluation

    def read_logits(self, logits: torch.Tensor, truth: np.ndarray, preprocess: Preprocess) -> Answers:
        target = preprocess.target
        assert isinstance(target, Values)
        found = logits.numpy() if len(target.names) > 1 else logits.numpy()[:, 0]
        scale = np.asarray(target.deviation) if len(target.names) > 1 else None
        return Answers(self.name, target.undo(truth), target.undo(found), labels=list(target.names), scale=scale)

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        """With several targets the scaled error: in the units of the file the largest target would dominate."""
        return "scaled_rmse" if len(labels) > 1 else super().main_metric(multi=multi, labels=labels)

    def truth(self, examples: Examples) -> Any:
        assert isinstance(examples, RowExamples) and isinstance(examples.preprocess.target, Values)
        return examples.preprocess.target.undo(super().truth(examples))

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """The training mean."""
        name = "always answering the training mean"
        if not len(truth) or not len(answers.truth):
            return name, {}
        mean = np.nanmean(np.asarray(truth, np.float64), axis=0)
        return name, self.metrics_of(answers, np.broadcast_to(mean, np.shape(answers.truth)))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A linear model of texts or pixels, gradient boosting on tables."""
        learnt = learners.learn(learners.regression, train, truth, test, answers, seed=seed)
        return learnt.name, {} if learnt.predicted is None else self.metrics_of(answers, learnt.predicted)

    # ------------------------------------------------------------ new rows

    def predictions(self, answers: Answers) -> list[Any]:
        return np.asarray(answers.predicted).tolist()

    def prediction_columns(self, answers: Answers) -> dict[str, list[Any]]:
        found, names = self.predictions(answers), answers.labels or []
        if len(names) < 2:
            return {"prediction": found}
        return {f"prediction_{name}": [row[i] for row in found] for i, name in enumerate(names)}

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        found, names = self.predictions(answers), answers.labels or []
        if len(names) < 2:
            return [{"value": finite(value)} for value in found]
        return [{"values": dict(zip(names, map(finite, row), strict=True))} for row in found]

"""A task from outside the library, whole in one file: ratings on an ordered scale, such as one to five stars.

Between classes and numbers: levels are few, as classes are, and some are nearer to each other than others, as numbers
are. The model has one logit for each step of the scale, "is it above this level?", and the answer is how many of them
say yes (Niu et al. 2016, ordinal regression). `anyformer train stars.csv --task rate --import toy_task` trains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer import Batch, Objective, RowTask, UserError
from anyformer.data.columns.convert import numbers
from anyformer.data.decision import Decision
from anyformer.data.frame import Frame
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.data.targets import ABSENT, UNSEEN, Encoded, Target
from anyformer.evaluation import learners
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.metrics import class_counts
from anyformer.heads import Pooled
from anyformer.tasks.network import pooled_style
from anyformer.tasks.target_look import Match, TargetLook

MOST_LEVELS = 20
UNKNOWN = -100  # the level of a row whose rating is not known


class Levels(Target):
    """The levels of the scale, lowest first, as the training rows have them."""

    values: tuple[float, ...]

    def encode(self, frame: Frame) -> Encoded:
        """The number of each row's level."""
        found = numbers(frame.column(self.names[0]))
        number = np.searchsorted(self.values, found).clip(0, len(self.values) - 1)
        known = np.asarray(self.values)[number] == found
        missing = np.isnan(found)
        levels = np.where(known, number, UNKNOWN).astype(np.int64)
        return Encoded(levels, {ABSENT: missing, UNSEEN: ~known & ~missing})

    def sizes(self) -> dict[str, Any]:
        return {"outputs": len(self.values) - 1}  # one logit for each step between two levels

    def describe(self, rows: int) -> str:
        return f"{len(self.values)} levels from {self.values[0]:g} to {self.values[-1]:g}"


class OrdinalLoss(Objective):
    """Is the rating above this level? One yes or no for each step of the scale."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = model(*batch.inputs, **batch.named).logits.float()
        return self.each(logits, batch.targets).sum()

    def each(self, logits: Tensor, levels: Tensor) -> Tensor:
        """The loss of each row (B,), 0 where the rating is not known."""
        above = (levels[:, None] > torch.arange(logits.shape[1], device=logits.device)).to(logits)
        wrong = F.binary_cross_entropy_with_logits(logits, above, reduction="none").mean(1)
        return torch.where(levels == UNKNOWN, 0.0, wrong)

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        return self.each(output.logits.float(), batch.targets)


class Rate(RowTask):
    """Ratings, as they are written in the training file."""

    name = "rate"
    title = "rating"
    verb = "rates"
    objective = OrdinalLoss

    # ------------------------------------------------------------ which data

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        """Never unasked: a column of few whole numbers may as well be classes."""
        if not asked:
            return None
        if seen.several or seen.is_list or not seen.is_numeric:
            raise UserError(f"{seen.name} holds no ratings", where="--task rate", fix="name a column of numbers")
        if len(seen.values[1]) > MOST_LEVELS:
            raise UserError(
                f"{seen.name} has {len(seen.values[1])} levels", where="--task rate", fix="use --task regress"
            )
        return Match("one", f"{seen.name} is a scale")

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Levels:
        found = numbers(frame.column(decision.target[0]))
        return Levels(names=decision.target, values=tuple(np.unique(found[np.isfinite(found)]).tolist()))

    # ------------------------------------------------------------ the model and its answers

    def head(self, own: Any, pool: str, sizes: Sizes) -> Any:
        return Pooled(classes=sizes.outputs, **pooled_style(own, pool))

    def read_logits(self, logits: Tensor, truth: np.ndarray, preprocess: Preprocess) -> Answers:
        assert isinstance(preprocess.target, Levels)
        names = [f"{value:g}" for value in preprocess.target.values]
        return Answers(self.name, truth, (logits > 0).sum(1).numpy(), labels=names)

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        """Agreement beyond chance, where far off counts more (quadratic kappa), and levels off in the mean."""
        known = self.has_truth(answers)
        truth, said = np.asarray(answers.truth)[known], np.asarray(answers.predicted)[known]
        if not len(truth):
            return {}
        counts = class_counts(truth, said, int(max(truth.max(), said.max())) + 1).astype(np.float64)
        far = np.subtract.outer(np.arange(len(counts)), np.arange(len(counts))) ** 2.0
        chance = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
        kappa = 1 - (far * counts).sum() / (far * chance).sum() if (far * chance).sum() else 0.0
        return {"kappa": float(kappa), "mae": float(np.abs(truth - said).mean())}

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "kappa"

    def has_truth(self, answers: Answers) -> np.ndarray:
        return np.asarray(answers.truth) != UNKNOWN

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        median = int(np.median(truth))
        said = np.full(len(answers.truth), median)
        return f"always answering {answers.labels[median]}", self.metrics(Answers(self.name, answers.truth, said))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A regression, rounded to the nearest level."""
        learnt = learners.learn(learners.regression, train, np.asarray(truth, np.float64), test, answers, seed=seed)
        if learnt.predicted is None:
            return learnt.name, {}
        said = learnt.predicted.round().clip(0, len(answers.labels or ()) - 1).astype(np.int64)
        return f"{learnt.name}, rounded", self.metrics(Answers(self.name, answers.truth, said))

    # ------------------------------------------------------------ for people and programs

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        level = int(answers.truth[row])
        return {"truth": answers.labels[level] if level != UNKNOWN else "", "predicted": self.predictions(answers)[row]}

    def predictions(self, answers: Answers) -> list[Any]:
        return [answers.labels[level] for level in answers.predicted]

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        return [{"rating": float(rating)} for rating in self.predictions(answers)]

"""Classification: one label per row, or several (multi-label)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.data.calibration import Calibration
from anyformer.data.columns.cells import as_words, factorize
from anyformer.data.columns.kinds import only_modality
from anyformer.data.counts import UNKNOWN
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.decision import Decision, name_of
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.data.targets import ABSENT, Classes, flat, switches
from anyformer.errors import UserError
from anyformer.evaluation import learners
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.bootstrap import RowSums
from anyformer.evaluation.calibration import class_nats, fit_label_temperatures, fit_temperature
from anyformer.evaluation.facts import class_facts, digits, label_set_facts, short
from anyformer.evaluation.metrics import class_metrics, known_classes, label_set_metrics
from anyformer.evaluation.row_sums import class_sums, label_set_sums
from anyformer.heads import Distilled, Pooled
from anyformer.log import Log
from anyformer.objectives import Classify as ClassLoss
from anyformer.objectives import Objective
from anyformer.slots import Network
from anyformer.tasks.network import pooled_style, preset_for_rows
from anyformer.tasks.ngram_weights import fit_n_grams
from anyformer.tasks.row_task import RowTask
from anyformer.tasks.shapes import six_digits
from anyformer.tasks.target_look import FEW, MOST_CLASSES, Match, TargetLook

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

UNEVEN = 0.8  # frequency of one class above which accuracy hardly differs from always predicting it
SELDOM = 10  # rows below which a combination of labels is not a stratum of its own


class ClassifyTask(RowTask):
    """Labels, as spelled in the training file."""

    name = "classify"
    title = "classification"
    verb = "names classes"
    objective = ClassLoss
    splits_by_time = True
    weighs_classes = True
    gives_probabilities = True
    has_plain_logits = True

    # ------------------------------------------------------------ which data

    def match(self, seen: TargetLook, *, asked: bool) -> Match | None:
        if seen.several:
            return self.match_columns(seen, asked)
        if seen.is_list:
            fits = asked or (seen.sentences is None and seen.few_labels)
            return Match("list", f"{seen.name} holds lists of {len(seen.values[1]):,} labels") if fits else None
        if not asked and seen.is_numeric and not seen.few_whole_numbers:
            return None
        words, used = seen.values[1], seen.used
        if seen.separator is not None:
            example = next(word for word in words if str(seen.separator) in word)[:40]
            why = f"{seen.name} holds lists of {seen.labels_in_lists} labels like {example!r}"
            return Match("list", f"{why}; if each is one class: --types {seen.name}=category", seen.separator)
        if len(words) > max(FEW, 0.9 * used) or len(words) > MOST_CLASSES:
            raise UserError(
                f"{seen.name} has {len(words):,} different values in {used:,} rows, too many to be classes",
                where=name_of(seen.frame), fix="name another --target, or say --task regress or translate",
            )  # fmt: skip
        return Match("one", f"{seen.name} has {len(words):,} different values{seen.class_reason}")

    def match_columns(self, seen: TargetLook, asked: bool) -> Match | None:
        """Several columns are labels if all of them are binary."""
        if seen.not_switches is None:
            return Match("columns", f"{len(seen.names)} columns of 0 and 1 are labels that may come together")
        if not asked:
            return None
        name, odd = seen.not_switches
        raise UserError(f"{name} holds {odd!r}", where="--target", fix="several targets are columns of 0 and 1")

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        columns = [frame.column(name) for name in decision.target]
        if decision.form == "columns":
            return [(ABSENT, np.isnan(np.stack([switches(column) for column in columns], 1)).any(1))]
        if decision.form == "list":
            return [(ABSENT, flat(columns[0], decision.separator)[2])]
        return super().target_problems(frame, decision)

    def strata(self, frame: Frame, decision: Decision) -> np.ndarray | None:
        if decision.form == "columns":
            return None
        codes, words = factorize(frame.column(decision.target[0]))
        order = np.argsort(np.argsort(np.array(words, dtype=object), kind="stable"), kind="stable")
        if decision.form == "list":  # combinations of labels; rare ones count as one, or none could be held out
            order[np.bincount(codes[codes >= 0], minlength=len(words)) < SELDOM] = -1
        return np.append(order, -1)[codes]

    def check_training_rows(self, frame: Frame, decision: Decision, rows: np.ndarray, counts: str) -> None:
        if decision.form != "one":
            return
        column: Any = as_words(frame.column(decision.target[0])).take(rows)
        seen = sorted(word for word in set(column.unique().to_pylist()) if word is not None)
        if len(seen) < 2:
            only = f"only {seen[0]!r}" if seen else "no label"
            raise UserError(
                f"{decision.target[0]} has {only} in the training rows ({counts})", where=name_of(frame),
                fix="give rows of at least two classes",
            )  # fmt: skip

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Classes:
        return Classes.fit(frame, decision.target, decision.form, labels, separator=decision.separator)

    # ------------------------------------------------------------ the model

    def fit_weights(self, spec: Network, data: Prepared, log: Log) -> dict[str, Tensor]:
        """Fit the n-grams of texts by logistic regression, if the head has them."""
        multi = data.preprocess.multi
        plain = ClassLoss(multi=multi)
        losses = plain.labels_loss if multi else plain.class_loss
        return fit_n_grams(spec, data, losses, plain.counted, log)

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        return preset_for_rows(sizes, gpu=gpu)

    def head(self, own: Any, pool: str, sizes: Sizes) -> Any:
        if isinstance(own, Distilled):
            return Distilled(classes=sizes.classes)
        return Pooled(classes=sizes.classes, **pooled_style(own, pool))

    def default_objective(self, sizes: Sizes, counts: Sequence[int] | None, *, balanced: bool) -> Objective:
        """Label smoothing for single-label texts, images and audio; class weights if requested."""
        alone = only_modality(sizes.parts)
        smooth = alone is not None and alone.smoothed and not sizes.multi
        weights = balanced_weights(counts, sizes.multi) if balanced and counts else None
        return ClassLoss(multi=sizes.multi, label_smoothing=0.1 if smooth else 0.0, weights=weights)

    def objective_of(self, preprocess: Preprocess) -> Objective:
        return ClassLoss(multi=preprocess.multi)

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """Restore labels unknown to training, which a batch treats as missing: predictions for them are wrong."""
        found = super().answer(evaluator, model, examples, rows, decode=decode)
        if not isinstance(examples, RowExamples) or found.multi or "targets" not in examples.arrays:
            return found
        stored = np.asarray(examples.arrays["targets"][examples.rows[np.sort(rows)]])
        return replace(found, truth=np.where(stored == UNKNOWN, UNKNOWN, found.truth))

    def read_logits(self, logits: torch.Tensor, truth: np.ndarray, preprocess: Preprocess) -> Answers:
        kept = truth.astype(np.int64) if preprocess.multi else truth
        found = Answers(self.name, kept, labels=list(preprocess.labels or ()), multi=preprocess.multi,
                        logits=logits.numpy())  # fmt: skip
        return self.calibrate(found, preprocess.calibration or Calibration())

    def calibrate(self, answers: Answers, calibration: Calibration) -> Answers:
        """The predicted class is the argmax of the original logits: dividing them could create ties."""
        assert answers.logits is not None
        logits, least = torch.from_numpy(answers.logits), calibration.threshold
        scaled = logits / torch.tensor(calibration.temperature, dtype=logits.dtype)
        share = (scaled.sigmoid() if answers.multi else scaled.softmax(-1)).numpy()
        if answers.multi:
            said = (logits > 0).numpy() if least is None else share >= least
        else:
            said = logits.argmax(1).numpy() if least is None or share.shape[1] != 2 else share[:, 1] >= least
        return replace(answers, predicted=said.astype(np.int64), probability=share)

    def fit_temperatures(self, answers: Answers) -> tuple[float, ...]:
        logits, truth = known_logits(answers)
        if answers.multi:
            return tuple(fit_label_temperatures(logits, truth).tolist())
        return (fit_temperature(logits, truth),)

    def has_threshold(self, preprocess: Preprocess) -> bool:
        return preprocess.multi or len(preprocess.labels or ()) == 2

    def selection_loss(self, answers: Answers) -> float | None:
        """The log loss at the best temperature, as calibration follows: overconfidence does not count."""
        if answers.multi or answers.logits is None:
            return super().selection_loss(answers)
        logits, truth = known_logits(answers)
        if not len(truth):
            return None
        return class_nats(logits / fit_temperature(logits, truth), truth) / len(truth)

    def row_sums(self, answers: Answers, metric: str) -> RowSums | None:
        return label_set_sums(answers, metric) if answers.multi else class_sums(answers, metric)

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return label_set_metrics(answers) if answers.multi else class_metrics(answers)

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "micro_f1" if multi else "accuracy"

    def metrics_beside(self, preprocess: Preprocess) -> tuple[str, ...]:
        """Log loss and AUC if nearly all training rows have the same class."""
        share = 0.0 if preprocess.multi else largest_share(preprocess)
        return ("log_loss", "auc") if share > UNEVEN else ()

    def notes(self, answers: Answers) -> list[str]:
        if answers.multi:
            return []
        strange = int((np.asarray(answers.truth) == UNKNOWN).sum())
        which = "1 row has" if strange == 1 else f"{strange:,} rows have"
        said = f"{which} a label that training lacks: every answer to it is wrong; AUC and log loss are of the others"
        found = [said] if strange else []
        alone = len(np.unique(known_classes(answers)[0])) == 1
        return [*found, "only one class is in this split: AUC is not defined"] if alone else found

    def has_truth(self, answers: Answers) -> np.ndarray:
        if answers.multi:
            return super().has_truth(answers)
        truth = np.asarray(answers.truth)
        known = truth >= 0  # labels unknown to training count as errors only if other labels are known
        return known | (truth == UNKNOWN) if known.any() else known

    # ------------------------------------------------------------ baselines

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """The most frequent class, with class frequencies as probabilities; multi-label: each label's majority."""
        known_rows, count = np.asarray(truth), len(answers.truth)
        if answers.multi:
            if not len(known_rows) or not count:
                return "the majority of each label", {}
            shares = np.broadcast_to(known_rows.mean(0), (count, known_rows.shape[1]))
            said = Answers(self.name, answers.truth, shares > 0.5, shares, answers.labels, multi=True)
            return "the majority of each label", self.metrics(said)
        if not len(known_rows):
            return "the majority of each label", {}
        shares = class_shares(known_rows, answers)
        most = int(shares.argmax())
        name = f"always answering '{answers.labels[most] if answers.labels else most}'"
        if not count:
            return name, {}
        chances = np.broadcast_to(shares, (count, len(shares)))
        return name, self.metrics(Answers(self.name, answers.truth, np.full(count, most), chances, answers.labels))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        """A linear model of texts or pixels, gradient boosting on tables."""
        learnt = learners.learn(learners.classification, train, truth, test, answers, seed=seed)
        if learnt.predicted is None:
            return learnt.name, {}
        chances = learnt.predicted
        said = chances > 0.5 if answers.multi else chances.argmax(1)
        found = Answers(self.name, answers.truth, said, chances, answers.labels, multi=answers.multi)
        return learnt.name, self.metrics(found)

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        return label_set_facts(answers) if answers.multi else class_facts(answers)

    def error_name(self, answers: Answers) -> str:
        return "mean error" if answers.multi else "loss" if answers.probability is not None else "wrong"

    def row_errors(self, answers: Answers) -> Sequence[float] | np.ndarray:
        truth, predicted = np.asarray(answers.truth), np.asarray(answers.predicted)
        if answers.multi:
            said = predicted if answers.probability is None else answers.probability
            return np.abs(np.asarray(said, np.float64) - truth).mean(1)
        if answers.probability is None:
            return (truth != predicted).astype(np.float64)
        chance = answers.probability[np.arange(len(truth)), np.maximum(truth, 0)].astype(np.float64)
        return np.where(truth >= 0, -np.log(np.maximum(chance, 1e-12)), -np.inf)

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        def label(number: int) -> str:
            if number < 0:
                return "(a label that training lacks)" if number == UNKNOWN else "(none)"
            return answers.labels[number] if answers.labels and number < len(answers.labels) else str(number)

        truth, predicted = np.asarray(answers.truth[row]), np.asarray(answers.predicted[row])
        if answers.multi:
            sides = [", ".join(label(c) for c in np.flatnonzero(part).tolist()) or "(none)"
                     for part in (truth, predicted)]  # fmt: skip
            return {"truth": short(sides[0]), "predicted": short(sides[1])}
        entry: dict[str, Any] = {"truth": short(label(int(truth))), "predicted": short(label(int(predicted)))}
        if answers.probability is not None:
            entry["probability"] = digits(float(answers.probability[row, int(predicted)]), 4)
        return entry

    # ------------------------------------------------------------ new rows

    def predictions(self, answers: Answers) -> list[Any]:
        labels = answers.labels or []
        if answers.multi:
            return [[labels[i] for i in np.flatnonzero(row)] for row in np.asarray(answers.predicted)]
        return [labels[i] for i in answers.predicted]

    def prediction_columns(self, answers: Answers) -> dict[str, list[Any]]:
        found, shares = self.predictions(answers), np.asarray(answers.probability)
        if not answers.multi:
            said = shares[np.arange(len(shares)), np.asarray(answers.predicted)]
            return {"prediction": found, "probability": six_digits(said)}
        each = {f"probability_{name}": six_digits(shares[:, i]) for i, name in enumerate(answers.labels or [])}
        return {"prediction": [";".join(row) for row in found]} | each

    def to_json(self, answers: Answers) -> list[dict[str, Any]]:
        shares, labels = np.asarray(answers.probability), answers.labels or []
        return [label_json(one, share, labels, multi=answers.multi)
                for one, share in zip(self.predictions(answers), shares, strict=True)]  # fmt: skip


def label_json(label: Any, shares: np.ndarray, labels: Sequence[str], *, multi: bool = False) -> dict[str, Any]:
    """A class with its probability, or all labels predicted, and the probability of every label."""
    scores = dict(zip(labels, six_digits(shares), strict=True))
    if multi:
        return {"labels": label, "scores": scores}
    return {"label": label, "probability": scores[label], "scores": scores}


def known_logits(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Logits and targets of the rows whose target is known."""
    assert answers.logits is not None
    truth = np.asarray(answers.truth)
    known = np.ones(len(truth), bool) if answers.multi else truth >= 0
    return answers.logits[known], truth[known]


def largest_share(preprocess: Preprocess) -> float:
    """The frequency of the most frequent class in the training rows."""
    counts = None if preprocess.target is None else preprocess.target.label_counts()
    return max(counts) / max(1, sum(counts)) if counts else 0.0


def balanced_weights(counts: Sequence[int], multi: bool = False) -> tuple[float, ...]:
    """Class weights that give every class the same total weight.

    >>> balanced_weights((10, 30))
    (2.0, 0.6666666666666666)
    """
    whole, classes = sum(counts), len(counts)
    return tuple(1.0 if multi else whole / (classes * max(1, count)) for count in counts)


def class_shares(truth: np.ndarray, answers: Answers) -> np.ndarray:
    """Class frequencies in training, summing to 1."""
    met = truth[truth >= 0].astype(np.int64)
    widths = [0 if answers.probability is None else answers.probability.shape[1], len(answers.labels or ())]
    count = max(int(met.max()) + 1, int(np.max(answers.truth, initial=-1)) + 1, *widths)
    return np.bincount(met, minlength=count) / len(met)

"""Metrics decomposed into terms per row, for standard errors and intervals; other metrics have none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anyformer.evaluation.answers import Answers
from anyformer.evaluation.bootstrap import RowSums, mean_of_rows, ratio
from anyformer.evaluation.metrics import auc_of_classes, known_classes, pad_tags, scored_classes
from anyformer.evaluation.spans import spans
from anyformer.evaluation.text_scores import NGRAMS, bleu_counts, row_scores

MOST_CLASSES = 200  # of a metric averaged over classes: each row has three terms per class


def class_sums(answers: Answers, metric: str) -> RowSums | None:
    """Row sums of classification metrics: accuracy, balanced accuracy, macro-F1, AUC and log loss."""
    truth, predicted, probability = known_classes(answers)
    if not len(truth):
        return None
    if metric == "log_loss" and probability is not None:
        small = float(np.finfo(np.float32).eps)
        return mean_of_rows(-np.log(np.clip(probability[np.arange(len(truth)), truth].astype(np.float64), small, 1.0)))
    if metric == "auc" and probability is not None and probability.shape[1] <= MOST_CLASSES:
        return auc_sums(truth, probability)
    truth, predicted = scored_classes(answers)
    if metric == "accuracy":
        return mean_of_rows((truth == predicted).astype(np.float64))
    classes = int(max(truth.max(), predicted.max())) + 1
    if metric not in ("balanced_accuracy", "macro_f1") or classes > MOST_CLASSES:
        return None
    true, said = np.eye(classes)[truth], np.eye(classes)[predicted]
    combine = balanced_accuracy_of if metric == "balanced_accuracy" else macro_f1_of
    return RowSums(np.concatenate([true * said, true, said], 1), combine)


def auc_sums(truth: np.ndarray, probability: np.ndarray) -> RowSums | None:
    """Row sums of AUC, to first order (DeLong): a row's term is the fraction of the other class it ranks correctly.

    The fractions are over all rows, so that the metric is exact and its variance that of large samples.
    """
    if auc_of_classes(truth, probability) is None:
        return None
    asked = [1] if probability.shape[1] == 2 else range(probability.shape[1])
    found = [side_shares(truth == c, probability[:, c]) for c in asked if 0 < (truth == c).sum() < len(truth)]
    whole = float(np.mean([(shares * own).sum() / own.sum() for shares, own, _ in found]))
    parts = [np.stack([shares * own, own, shares * other, other], 1) for shares, own, other in found]

    def combine(sums: np.ndarray) -> np.ndarray:
        above, own, below, other = (sums[..., at::4] for at in range(4))
        return (ratio(above, own) + ratio(below, other)).mean(-1) - whole

    return RowSums(np.concatenate(parts, 1), combine)


def side_shares(positive: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per row, the fraction of negative rows with a lower score, or of positive ones with a higher score, ties count
    half; and which rows are positive, and which negative."""
    own, other = np.sort(score[positive]), np.sort(score[~positive])
    below = (np.searchsorted(other, score, "left") + np.searchsorted(other, score, "right")) / (2 * len(other))
    above = 1 - (np.searchsorted(own, score, "left") + np.searchsorted(own, score, "right")) / (2 * len(own))
    return np.where(positive, below, above), positive.astype(np.float64), (~positive).astype(np.float64)


def label_set_sums(answers: Answers, metric: str) -> RowSums | None:
    """Row sums of multi-label metrics: micro-F1, macro-F1 and exact matches."""
    truth, predicted = np.asarray(answers.truth).astype(bool), np.asarray(answers.predicted).astype(bool)
    if not len(truth):
        return None
    if metric == "exact_match":
        return mean_of_rows((truth == predicted).all(1).astype(np.float64))
    both, true, said = truth & predicted, truth, predicted
    if metric == "micro_f1":
        parts = [part.sum(1, keepdims=True).astype(np.float64) for part in (both, true, said)]
        return RowSums(np.concatenate(parts, 1), macro_f1_of)
    if metric != "macro_f1" or truth.shape[1] > MOST_CLASSES:
        return None
    return RowSums(np.concatenate([both, true, said], 1).astype(np.float64), mean_label_f1_of)


def number_sums(answers: Answers, metric: str) -> RowSums | None:
    """Row sums of RMSE and MAE; of several outputs their mean, plain or over the output's standard deviation."""
    scale = answers.scale if metric == "scaled_rmse" else None
    if (scale is None and metric not in ("rmse", "mae")) or not len(answers.truth):
        return None
    truth = np.asarray(answers.truth, np.float64).reshape(len(answers.truth), -1)
    wrong = np.asarray(answers.predicted, np.float64).reshape(len(truth), -1) - truth
    wrong = wrong if scale is None else wrong / scale
    known = np.isfinite(wrong)
    errors = np.where(known, np.abs(wrong) if metric == "mae" else wrong**2, 0.0)
    return RowSums(np.concatenate([errors, known], 1), mean_of_outputs if metric == "mae" else root_mean_of)


def tag_sums(answers: Answers, metric: str) -> RowSums | None:
    """Row sums of span F1 and of the accuracy over words; a row is a sentence."""
    truth, predicted = answers.truth, pad_tags(answers.truth, answers.predicted)
    if not len(truth):
        return None
    if metric == "accuracy":
        counts = [(sum(a == b for a, b in zip(*pair, strict=True)), len(pair[0])) for pair in
                  zip(truth, predicted, strict=True)]  # fmt: skip
        return RowSums(np.array(counts, np.float64), lambda sums: ratio(sums[..., 0], sums[..., 1]))
    if metric != "span_f1":
        return None
    found = [count_spans(want, got) for want, got in zip(truth, predicted, strict=True)]
    return RowSums(np.array(found, np.float64), macro_f1_of)


def count_spans(truth: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
    """Numbers of spans of one sentence that are found, true, and predicted."""
    true, said = spans(truth), spans(predicted)
    return len(set(true) & set(said)), len(true), len(said)


def text_sums(answers: Answers, metric: str) -> RowSums | None:
    """Row sums of BLEU, from the n-gram counts of each text, and of ROUGE-L; a row is a text."""
    if answers.truth is None or not len(answers.predicted):
        return None
    if metric == "rouge_l":
        return mean_of_rows(np.array(row_scores(answers.predicted, answers.truth)))
    if metric != "bleu":
        return None
    return RowSums(np.array(bleu_counts(answers.predicted, answers.truth), np.float64), bleu_of)


# ---------------------------------------------------------------- from sums to metrics


def balanced_accuracy_of(sums: np.ndarray) -> np.ndarray:
    """Mean recall of the classes that occur, from hits, true and predicted counts per class."""
    hits, true, _ = np.split(sums, 3, -1)
    return ratio(ratio(hits, true).sum(-1), (true > 0).sum(-1).astype(np.float64))


def macro_f1_of(sums: np.ndarray) -> np.ndarray:
    """Mean F1 of the classes that are true or predicted somewhere, from hits, true and predicted counts per class."""
    hits, true, said = np.split(sums, 3, -1)
    return ratio(ratio(2 * hits, true + said).sum(-1), (true + said > 0).sum(-1).astype(np.float64))


def mean_label_f1_of(sums: np.ndarray) -> np.ndarray:
    """Mean F1 of all labels; one that never occurs counts 0."""
    hits, true, said = np.split(sums, 3, -1)
    return ratio(2 * hits, true + said).mean(-1)


def root_mean_of(sums: np.ndarray) -> np.ndarray:
    """Mean over outputs of the root of each output's mean, from sums and counts per output."""
    errors, counts = np.split(sums, 2, -1)
    return ratio(np.sqrt(ratio(errors, counts)).sum(-1), (counts > 0).sum(-1).astype(np.float64))


def mean_of_outputs(sums: np.ndarray) -> np.ndarray:
    """The mean over outputs of each one's mean."""
    errors, counts = np.split(sums, 2, -1)
    return ratio(ratio(errors, counts).sum(-1), (counts > 0).sum(-1).astype(np.float64))


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """Corpus BLEU from the sums of `bleu_counts`, with sacreBLEU's exponential smoothing: each order without a match
    halves its precision once more."""
    matches, totals = sums[..., :NGRAMS], sums[..., NGRAMS : 2 * NGRAMS]
    said, true = sums[..., -2], sums[..., -1]
    none = (matches == 0) & (totals > 0)
    smoothed = np.where(none, 0.5 ** np.cumsum(none, -1), matches)
    precisions = ratio(smoothed, totals)
    logs = np.log(precisions, out=np.full(precisions.shape, -np.inf), where=precisions > 0).mean(-1)
    brevity = np.where(said < true, 1 - ratio(true, said), 0.0)
    return 100 * np.exp(logs + brevity)

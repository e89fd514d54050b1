"""Metrics of predictions, the most important first; values agree with scikit-learn and sacreBLEU.

Implemented here because every evaluation needs them and scikit-learn is an optional extra.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from anyformer.data.counts import UNKNOWN
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.average_precision import average_precision
from anyformer.evaluation.spans import are_spans, precision_recall_f1, span_counts
from anyformer.evaluation.text_scores import bleu_available, bleu_chrf, exact_match, rouge

MOST_NATS = 700.0  # its exponential is still finite in float64


# ---------------------------------------------------------------- language models


def language_metrics(answers: Answers) -> dict[str, float]:
    """Loss in nats per token, perplexity, and bits per byte, which is independent of the tokenizer."""
    if not answers.tokens:
        return {}
    loss = answers.nats / answers.tokens
    found = {"loss": loss, "perplexity": math.exp(min(loss, MOST_NATS))}
    if answers.bytes:
        found["bits_per_byte"] = answers.nats / math.log(2) / answers.bytes
    return found


# ---------------------------------------------------------------- classes


def known_classes(answers: Answers) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Truth, predictions and probabilities of the rows with a known class (negative: unknown)."""
    truth, predicted = (np.asarray(part).astype(np.int64) for part in (answers.truth, answers.predicted))
    keep = truth >= 0
    return truth[keep], predicted[keep], None if answers.probability is None else np.asarray(answers.probability)[keep]


def scored_classes(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Truth and predictions of the rows with a known class, then of those whose class the model does not have, as one
    extra class that is never predicted."""
    truth, predicted, _ = known_classes(answers)
    strange = np.asarray(answers.truth) == UNKNOWN
    if not strange.any() or not len(truth):
        return truth, predicted
    missed = np.asarray(answers.predicted).astype(np.int64)[strange]
    another = max(int(truth.max()), int(predicted.max()), int(missed.max())) + 1
    return np.concatenate([truth, np.full(len(missed), another)]), np.concatenate([predicted, missed])


def class_counts(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """The confusion matrix (classes, classes): how often class i was predicted as j."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_metrics(answers: Answers) -> dict[str, float]:
    """Accuracy, balanced accuracy, macro-F1; with probabilities also AUC and log loss, over the classes that the model
    has."""
    truth, _, probability = known_classes(answers)
    if not len(truth):
        return {}
    scored = scored_classes(answers)
    counts = class_counts(*scored, int(max(part.max() for part in scored)) + 1)
    hits, true, said = counts.diagonal(), counts.sum(1), counts.sum(0)
    met, seen = true > 0, true + said > 0
    found = {
        "accuracy": hits.sum() / len(scored[0]),
        "balanced_accuracy": (hits[met] / true[met]).mean(),
        "macro_f1": (2 * hits[seen] / (true + said)[seen]).mean(),
    }
    if probability is not None:
        score = auc_of_classes(truth, probability)
        if score is not None:
            found["auc"] = score
        found["log_loss"] = log_loss(truth, probability)
    return {name: float(value) for name, value in found.items()}


def auc(positive: np.ndarray, score: np.ndarray) -> float | None:
    """Area under the ROC curve: the probability that a positive row scores higher, ties count half; None if
    undefined."""
    wanted, positives = positive.astype(bool), int(positive.astype(bool).sum())
    if not 0 < positives < len(wanted):
        return None
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place.reshape(-1)]  # ties get their mean rank
    above = rank[wanted].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(wanted) - positives)))


def auc_of_classes(truth: np.ndarray, probability: np.ndarray) -> float | None:
    """AUC of two classes; of more, the mean of one against the rest over classes with rows on both sides."""
    if probability.shape[1] == 2:
        return auc(truth == 1, probability[:, 1])
    return mean_of(auc(truth == c, probability[:, c]) for c in range(probability.shape[1]))


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the defined values, None if there are none."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def log_loss(truth: np.ndarray, probability: np.ndarray) -> float:
    """Mean of -log p(true class); probabilities are clipped away from 0 and 1 by the epsilon of their dtype."""
    chances = probability if probability.dtype == np.float32 else probability.astype(np.float64)
    small = np.finfo(chances.dtype).eps
    return float(-np.log(np.clip(chances[np.arange(len(truth)), truth], small, 1 - small).astype(np.float64)).mean())


def label_set_metrics(answers: Answers) -> dict[str, float]:
    """Micro-F1, macro-F1, exact matches and AUC of rows with sets of labels."""
    truth, predicted = np.asarray(answers.truth).astype(bool), np.asarray(answers.predicted).astype(bool)
    if not len(truth):
        return {}
    both, either = (truth & predicted).sum(0), truth.sum(0) + predicted.sum(0)
    found = {
        "micro_f1": 2 * both.sum() / either.sum() if either.sum() else 0.0,
        "macro_f1": np.divide(2 * both, either, out=np.zeros(len(both)), where=either > 0).mean(),
        "exact_match": (truth == predicted).all(1).mean(),
    }
    if answers.probability is not None:
        score = mean_of(auc(truth[:, c], answers.probability[:, c]) for c in range(truth.shape[1]))
        if score is not None:
            found["auc"] = score
    return {name: float(value) for name, value in found.items()}


# ---------------------------------------------------------------- objects


def object_metrics(answers: Answers) -> dict[str, float]:
    """COCO average precision over IoU .5 to .95, at .5 and at .75; empty without objects."""
    found = average_precision(answers.predicted, answers.truth)
    if math.isnan(found.ap):
        return {}
    return {"ap": found.ap, "ap50": found.ap50, "ap75": found.ap75}


# ---------------------------------------------------------------- numbers


def number_metrics(answers: Answers) -> dict[str, float]:
    """RMSE, MAE and R²; of several outputs their means, then each output separately.

    A mean over outputs of different units is dominated by the largest, so the mean of each RMSE over the output's
        standard deviation in training, if known, comes first.
    """
    truth, predicted = np.asarray(answers.truth, np.float64), np.asarray(answers.predicted, np.float64)
    if truth.ndim == 1 or truth.shape[1] == 1:
        return one_number_metrics(truth.reshape(-1), predicted.reshape(-1))
    names = answers.labels or [str(k) for k in range(truth.shape[1])]
    each = {name: one_number_metrics(truth[:, k], predicted[:, k]) for k, name in enumerate(names)}
    found = {}
    if answers.scale is not None:
        pairs = zip(each.values(), np.asarray(answers.scale, np.float64).tolist(), strict=True)
        scaled = mean_of(one["rmse"] / scale if "rmse" in one else None for one, scale in pairs)
        found = {} if scaled is None else {"scaled_rmse": scaled}
    for key in ("rmse", "mae", "r2"):
        mean = mean_of(one.get(key) for one in each.values())
        if mean is not None:
            found[key] = mean
    return found | {f"{key}.{name}": value for name, one in each.items() for key, value in one.items()}


def one_number_metrics(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """RMSE, MAE and R² of one output, over the rows with a known truth."""
    keep = ~np.isnan(truth)
    truth, wrong = truth[keep], predicted[keep] - truth[keep]
    if not len(truth):
        return {}
    found = {"rmse": float(np.sqrt((wrong**2).mean())), "mae": float(np.abs(wrong).mean())}
    if len(truth) > 1:
        spread, left = float(((truth - truth.mean()) ** 2).sum()), float((wrong**2).sum())
        found["r2"] = 1 - left / spread if spread else float(left == 0)  # a constant truth: 1 if exact, else 0
    return found


# ---------------------------------------------------------------- tags and texts


def pad_tags(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> list[list[str]]:
    """The predicted tags, padded with "" to the number of true ones for words beyond the model's length."""
    return [(list(got) + [""] * len(want))[: len(want)] for want, got in zip(truth, predicted, strict=True)]


def tag_metrics(answers: Answers) -> dict[str, float]:
    """Accuracy over words: after span scores if tags mark spans, else before macro-F1."""
    truth, predicted = answers.truth, pad_tags(answers.truth, answers.predicted)
    want, got = list(chain.from_iterable(truth)), list(chain.from_iterable(predicted))
    if not want:
        return {}
    accuracy = sum(a == b for a, b in zip(want, got, strict=True)) / len(want)
    if are_spans(answers.labels or sorted(set(want) | set(got))):
        counts = np.array([*span_counts(truth, predicted).values(), (0, 0, 0)]).sum(0)
        precision, recall, f1 = precision_recall_f1(*(int(one) for one in counts))
        return {"span_f1": f1, "span_precision": precision, "span_recall": recall, "accuracy": accuracy}
    names = sorted(set(want) | set(got))
    number = {name: i for i, name in enumerate(names)}
    counts = class_counts(np.array([number[t] for t in want]), np.array([number[t] for t in got]), len(names))
    scores = 2 * counts.diagonal() / (counts.sum(0) + counts.sum(1))
    real = [score for name, score in zip(names, scores, strict=True) if name]  # "" is no tag
    return {"accuracy": accuracy, "macro_f1": float(np.mean(real))}


def text_metrics(answers: Answers) -> dict[str, float]:
    """BLEU and chrF from 0 to 100; ROUGE and exact matches from 0 to 1."""
    truth, predicted = answers.truth, answers.predicted
    if not len(predicted):
        return {}
    shares = rouge(predicted, truth) | {"exact_match": exact_match(predicted, truth)}
    if not bleu_available():
        return {"rouge_l": shares["rouge_l"]} | shares
    bleu, chrf, _ = bleu_chrf(predicted, truth)
    return {"bleu": bleu, "chrf": chrf} | shares


def rank_correlation(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Spearman's rank correlation, with mean ranks for ties; 0 if either is constant.

    >>> round(rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([10.0, 20.0, 15.0])), 3)
    0.5
    """
    ranks = []
    for values in (truth, predicted):
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[place.reshape(-1)])
    if any(rank.std() == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])

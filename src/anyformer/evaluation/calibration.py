"""Calibration of probabilities: are 80 % of the predictions made with probability 0.8 correct?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anyformer.evaluation.answers import Answers
from anyformer.evaluation.metrics import known_classes, log_loss

BINS = 10


@dataclass(frozen=True)
class Reliability:
    """Predictions in equal-width bins of probability; empty bins have count 0 and nan means."""

    count: np.ndarray  # (bins,) predictions in the bin
    said: np.ndarray  # (bins,) their mean probability
    true: np.ndarray  # (bins,) the fraction of them that is correct

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap between `said` and `true`, weighted by the count of each bin."""
        filled = self.count > 0
        gaps = np.abs(self.said[filled] - self.true[filled])
        return float((gaps * self.count[filled]).sum() / self.count.sum()) if filled.any() else 0.0


def reliability(chance: np.ndarray, came_true: np.ndarray, bins: int = BINS) -> Reliability:
    """Bin the probabilities (N,) of events that occurred (1) or did not (0); an edge belongs to the bin below.

    >>> reliability(np.array([0.1, 0.9, 0.9]), np.array([0, 1, 0]), bins=2).true.tolist()
    [0.0, 0.5]
    """
    chance, came_true = np.asarray(chance, np.float64), np.asarray(came_true, np.float64)
    place = np.clip(np.ceil(chance * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    filled = np.where(count > 0, count, np.nan)
    said, true = (np.bincount(place, values, minlength=bins) / filled for values in (chance, came_true))
    return Reliability(count, said, true)


def of_classes(truth: np.ndarray, probability: np.ndarray, bins: int = BINS) -> Reliability:
    """Two classes: the probability of the second. More: the probability of the predicted class."""
    if probability.shape[1] == 2:
        return reliability(probability[:, 1], truth == 1, bins)
    return reliability(probability.max(1), probability.argmax(1) == truth, bins)


def of_label_sets(truth: np.ndarray, probability: np.ndarray, bins: int = BINS) -> Reliability:
    """Each label of each row is one event."""
    return reliability(probability.reshape(-1), truth.reshape(-1), bins)


def probability_errors(answers: Answers) -> dict[str, float]:
    """Log loss (of label sets the mean over labels) and expected calibration error."""
    if answers.multi:
        truth, chance = np.asarray(answers.truth), np.asarray(answers.probability, np.float64)
        small = float(np.finfo(np.float32).eps)
        right = np.clip(np.where(truth > 0, chance, 1 - chance), small, 1.0)
        return {"log_loss": float(-np.log(right).mean()), "calibration_error": of_label_sets(truth, chance).error}
    classes, _, shares = known_classes(answers)
    assert shares is not None
    return {"log_loss": log_loss(classes, shares), "calibration_error": of_classes(classes, shares).error}


# ---------------------------------------------------------------- temperature

COLDEST, HOTTEST = 0.02, 50.0
SEARCH = 40  # iterations of the golden-section search
# Prior standard deviation of the log-temperature, above 1 and below: few rows leave it near 1. Models
# trained for many epochs are usually overconfident and rarely underconfident.
HOT, COLD = 1.0, 0.3
GOLDEN = (5**0.5 - 1) / 2


def fit_temperature(logits: np.ndarray, truth: np.ndarray) -> float:
    """The temperature of logits (N,C) that minimises the log loss of the classes (N,).

    >>> logits = np.array([[4.0, 0.0]] * 4000)
    >>> round(fit_temperature(logits, np.array([0, 0, 0, 1] * 1000)), 1)  # said 98 %, came true 75 %
    3.6
    """
    exact = logits.astype(np.float64)

    def cost(temperature: np.ndarray) -> np.ndarray:
        return np.array([class_nats(exact / temperature[0], truth)])

    return float(search_temperatures(cost, 1)[0])


def fit_label_temperatures(logits: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """A temperature per label (C,), from logits (N,C) and truth (N,C) of 0 and 1."""
    exact = logits.astype(np.float64)

    def cost(temperature: np.ndarray) -> np.ndarray:
        return label_nats(exact / temperature, truth)

    return search_temperatures(cost, logits.shape[1])


def class_nats(logits: np.ndarray, truth: np.ndarray) -> float:
    """The summed log loss of classes."""
    highest = logits.max(1, keepdims=True)
    whole = highest[:, 0] + np.log(np.exp(logits - highest).sum(1))
    return float((whole - logits[np.arange(len(truth)), truth]).sum(dtype=np.float64))


def label_nats(logits: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The summed log loss per label (C,)."""
    return (np.logaddexp(0.0, logits) - truth * logits).sum(0, dtype=np.float64)


def search_temperatures(cost: Callable[[np.ndarray], np.ndarray], count: int) -> np.ndarray:
    """The temperatures (count,) that minimise each cost plus the prior."""

    def whole(log_temperature: np.ndarray) -> np.ndarray:
        spread = np.where(log_temperature > 0, HOT, COLD)
        return cost(np.exp(log_temperature)) + (log_temperature / spread) ** 2 / 2

    low, high = np.full(count, np.log(COLDEST)), np.full(count, np.log(HOTTEST))
    for _ in range(SEARCH):
        span = GOLDEN * (high - low)
        left, right = high - span, low + span
        lower = whole(left) < whole(right)
        low, high = np.where(lower, low, left), np.where(lower, right, high)
    return np.exp((low + high) / 2)

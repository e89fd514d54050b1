"""Whether probabilities mean what they say: of all answers given with 80 %, are four in five right?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BINS = 10


@dataclass(frozen=True)
class Reliability:
    """Answers sorted into bins of equal width by their probability; empty bins have count 0 and nan means."""

    count: np.ndarray  # (bins,) answers in the bin
    said: np.ndarray  # (bins,) their mean probability
    true: np.ndarray  # (bins,) the share of them that came true

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap between said and true, weighted by how many answers a bin has."""
        filled = self.count > 0
        gaps = np.abs(self.said[filled] - self.true[filled])
        return float((gaps * self.count[filled]).sum() / self.count.sum()) if filled.any() else 0.0


def reliability(chance: np.ndarray, came_true: np.ndarray, bins: int = BINS) -> Reliability:
    """Bins of the probabilities (N,) of events that did (1) or did not (0) come true; an edge belongs to the bin below.

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
    """Two classes: the probability of the second. More: the probability of the answer given."""
    if probability.shape[1] == 2:
        return reliability(probability[:, 1], truth == 1, bins)
    return reliability(probability.max(1), probability.argmax(1) == truth, bins)


def of_label_sets(truth: np.ndarray, probability: np.ndarray, bins: int = BINS) -> Reliability:
    """Every label of every row is one event."""
    return reliability(probability.reshape(-1), truth.reshape(-1), bins)

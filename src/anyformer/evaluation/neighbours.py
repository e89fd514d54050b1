"""Baseline of masked tokens: counts of the token between its left and right neighbour."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

MOST_READ = 4 * 10**6  # training tokens that are counted
MOST_SCORED = 10**4  # masked tokens that are scored
WEIGHT = 1.0  # pseudo-count of the estimate with fewer neighbours


class NeighbourScores(NamedTuple):
    """Mean nats of the masked tokens, and their top-1 accuracy."""

    loss: float
    accuracy: float


class NeighbourCounts:
    """Counts of each token between two others, after one, before one, and overall.

    Each estimate backs off to the next: p(t | l, r) = (c(l, t, r) + w q(t)) / (c(l, ., r) + w), with q the mean of
    p(t | l) and p(t | r), which back off to the add-one smoothed frequency of t in the same way.
    """

    def __init__(self, tokens: np.ndarray, size: int) -> None:
        text = np.asarray(tokens[-MOST_READ:], np.int64)
        self.size = size
        counts = np.bincount(text, minlength=size) + 1.0
        self.frequency = counts / counts.sum()
        self.between = Followers(text[:-2] * size + text[2:], text[1:-1])
        self.behind, self.before = Followers(text[:-1], text[1:]), Followers(text[1:], text[:-1])

    def shares(self, left: int, right: int) -> np.ndarray:
        """The probability of every token (V,) between two others; a negative neighbour is unknown."""
        sides = [self.behind.mix(left, self.frequency), self.before.mix(right, self.frequency)]
        mean = (sides[0] + sides[1]) / 2
        return self.between.mix(left * self.size + right, mean) if left >= 0 and right >= 0 else mean

    def score(self, hidden: np.ndarray, left: np.ndarray, right: np.ndarray) -> NeighbourScores:
        """Score masked tokens (N,) by their neighbours (N,)."""
        nats, named = 0.0, 0
        count = min(len(hidden), MOST_SCORED)
        for at in np.linspace(0, len(hidden) - 1, count).astype(np.int64).tolist():
            shares = self.shares(int(left[at]), int(right[at]))
            nats -= math.log(shares[hidden[at]])
            named += int(shares.argmax()) == hidden[at]
        return NeighbourScores(nats / count, named / count)


class Followers:
    """Which tokens were seen with each context, and how often."""

    def __init__(self, contexts: np.ndarray, tokens: np.ndarray) -> None:
        size = int(tokens.max(initial=0)) + 1
        keys, self.counts = np.unique(contexts * size + tokens, return_counts=True)
        self.contexts, self.tokens = keys // size, keys % size

    def mix(self, context: int, shares: np.ndarray) -> np.ndarray:
        """Counts of a context, smoothed by the probabilities (V,) without it."""
        first, last = np.searchsorted(self.contexts, [context, context + 1])
        counts = self.counts[first:last]
        found = shares * WEIGHT
        found[self.tokens[first:last]] += counts
        return found / (WEIGHT + counts.sum())

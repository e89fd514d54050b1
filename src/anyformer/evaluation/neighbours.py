"""A hidden token from the token on its left and the one on its right: counts, the simplest learner that fills gaps."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

MOST_READ = 4 * 10**6  # tokens of training text that are counted
MOST_SCORED = 10**4  # hidden tokens that are scored
WEIGHT = 1.0  # how many times what fewer neighbours say is taken to have been seen


class NeighbourScores(NamedTuple):
    """Mean nats of the hidden tokens, and the share of them that was named first."""

    loss: float
    accuracy: float


class NeighbourCounts:
    """How often each token stood between two others, behind one, before one, and at all.

    Each estimate backs off to the next: p(t | l, r) = (c(l, t, r) + w q(t)) / (c(l, ., r) + w), with q the mean of
    p(t | l) and p(t | r), which back off to the frequency of t in the same way; that has one added to every count.
    """

    def __init__(self, tokens: np.ndarray, size: int) -> None:
        text = np.asarray(tokens[-MOST_READ:], np.int64)
        self.size = size
        counts = np.bincount(text, minlength=size) + 1.0
        self.frequency = counts / counts.sum()
        self.between = Followers(text[:-2] * size + text[2:], text[1:-1])
        self.behind, self.before = Followers(text[:-1], text[1:]), Followers(text[1:], text[:-1])

    def shares(self, left: int, right: int) -> np.ndarray:
        """The probability of every token (V,) between two others; a negative neighbour is not known."""
        sides = [self.behind.mix(left, self.frequency), self.before.mix(right, self.frequency)]
        mean = (sides[0] + sides[1]) / 2
        return self.between.mix(left * self.size + right, mean) if left >= 0 and right >= 0 else mean

    def score(self, hidden: np.ndarray, left: np.ndarray, right: np.ndarray) -> NeighbourScores:
        """Hidden tokens (N,) scored by their neighbours (N,)."""
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
        """What was seen with a context, mixed with the shares (V,) that are known without it."""
        first, last = np.searchsorted(self.contexts, [context, context + 1])
        counts = self.counts[first:last]
        found = shares * WEIGHT
        found[self.tokens[first:last]] += counts
        return found / (WEIGHT + counts.sum())

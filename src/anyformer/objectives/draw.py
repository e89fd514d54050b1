"""Draw: where randomness in data comes from. It is a pure function of seed, epoch and row; nothing is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Draw:
    """Where randomness in the data comes from while training: nothing else is remembered, so nothing is restored."""

    seed: int
    epoch: int

    def generator(self, row: int) -> np.random.Generator:
        """The random numbers of one row in one epoch, whoever asks and in whatever order."""
        return np.random.default_rng((self.seed, self.epoch, row))

    def uniform(self, rows: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
        """(B, count) numbers from 0 to 1 for some rows in one epoch, each row's own whatever its neighbours are.

        A generator a row takes longer to make than a small image takes to vary; this is one for all of them.
        """
        mixed = np.zeros(1, np.uint64)
        for number in (np.array([self.seed]), np.array([self.epoch]), np.asarray(rows)[:, None], np.arange(count)):
            mixed = scramble(mixed + number.astype(np.uint64))
        return (mixed >> np.uint64(11)) * 2.0**-53


def scramble(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers of 64 bits whose neighbours have nothing in common any more (splitmix64)."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


EVALUATION = Draw(seed=2**31, epoch=0)  # a seed that no training has: rows are always evaluated with the same numbers

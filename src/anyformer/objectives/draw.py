"""Draw: stateless randomness for data, a pure function of seed, epoch and row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Draw:
    """Randomness of the data in training: it has no state, so a resumed run has none to restore."""

    seed: int
    epoch: int

    def generator(self, row: int) -> np.random.Generator:
        """The generator of one row in one epoch, independent of the process and of the order of calls."""
        return np.random.default_rng((self.seed, self.epoch, row))

    def uniform(self, rows: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
        """(B, count) uniform numbers in [0, 1) for some rows in one epoch, independent of the rest of the batch.

        Vectorised, since creating a generator per row takes longer than augmenting a small image.
        """
        mixed = np.zeros(1, np.uint64)
        for number in (np.array([self.seed]), np.array([self.epoch]), np.asarray(rows)[:, None], np.arange(count)):
            mixed = scramble(mixed + number.astype(np.uint64))
        return (mixed >> np.uint64(11)) * 2.0**-53


def scramble(numbers: np.ndarray) -> np.ndarray:
    """The splitmix64 hash of 64-bit integers."""
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


EVALUATION = Draw(seed=2**31, epoch=0)  # a seed that no training has: evaluation is deterministic

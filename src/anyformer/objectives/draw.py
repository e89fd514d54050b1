"""Draw: where randomness in data comes from. It is a pure function of seed, epoch and row; nothing is remembered."""

from __future__ import annotations

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


EVALUATION = Draw(seed=2**31, epoch=0)  # a seed that no training has: rows are always judged with the same numbers

"""Multi-task training: the mixing rate and rows of each task; a pure function of the seed and the epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anyformer.data.settings import Mixture
from anyformer.errors import UserError, did_you_mean


@dataclass(frozen=True)
class MixedRows:
    """The rows of each task, and how many of them an epoch has.

    A task's rows are a stream of permutations, from which every epoch takes the next ones: all rows of a task occur
    equally often, however many an epoch takes.
    """

    rows: tuple[np.ndarray, ...]
    counts: tuple[int, ...]

    def epoch(self, seed: int, epoch: int) -> np.ndarray:
        """All rows of one epoch, grouped by task."""
        return np.concatenate([self.draw(seed, epoch, task) for task in range(len(self.rows))])

    def draw(self, seed: int, epoch: int, task: int) -> np.ndarray:
        """The rows of one task in one epoch."""
        rows, count = self.rows[task], self.counts[task]
        first = epoch * count
        passes = range(first // len(rows), -(-(first + count) // len(rows)))
        orders = [np.random.default_rng((seed, task, number, len(rows))).permutation(rows) for number in passes]
        start = first - passes.start * len(rows)
        return np.concatenate(orders)[start : start + count] if orders else rows[:0]


def mix_rows(tasks: Sequence[str], settings: Mixture) -> MixedRows | None:
    """The rows (N,) of each task mixed according to the settings; None if every row occurs once."""
    if settings.replace(by_file=False, prefixes=None) == Mixture():
        return None
    rates = mixing_rates(tasks, settings)
    known = np.array(tasks)
    rows = tuple(np.flatnonzero(known == name) for name in rates)
    return MixedRows(rows, share_out(len(tasks), list(rates.values())))


def mixing_rates(tasks: Sequence[str], settings: Mixture) -> dict[str, float]:
    """The mixing rate of each task, sorted by name.

    >>> mixing_rates(["a"] * 90 + ["b"] * 10, Mixture(temperature=2.0))
    {'a': 0.75, 'b': 0.25}
    """
    names, sizes = np.unique(np.array(tasks), return_counts=True)
    capped = np.minimum(sizes, settings.cap or sizes.max()).astype(np.float64)
    rates = capped ** (1 / settings.temperature)
    weights = settings.weight_of_task()
    for name in weights:
        if name not in names:
            raise UserError(f"no training row has the task {name!r}", where="data.mixture.weights",
                            fix=did_you_mean(name, names.tolist()))  # fmt: skip
    rates *= [weights.get(name, 1.0) for name in names.tolist()]
    return {name: float(rate) for name, rate in zip(names.tolist(), rates / rates.sum(), strict=True)}


def share_out(total: int, rates: Sequence[float]) -> tuple[int, ...]:
    """Integers that add up to `total`, at these rates; the rest goes to the largest remainders.

    >>> share_out(10, [0.75, 0.25])
    (8, 2)
    """
    wanted = np.array(rates) * total
    counts = np.floor(wanted).astype(int)
    late = np.argsort(counts - wanted, kind="stable")[: total - int(counts.sum())]
    counts[late] += 1
    return tuple(counts.tolist())

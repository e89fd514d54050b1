"""Confidence intervals of metrics by a bootstrap over rows, paired if two models answered the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anyformer.evaluation.metric_directions import gain

DRAWS = 1000
ERROR_DRAWS = 200  # are enough for a standard error
GROUPS = 2000  # beyond this number, rows are resampled in random groups: the variance of a sum stays the same
LEVEL = 0.95


@dataclass(frozen=True)
class RowSums:
    """A metric as a function of sums over rows: the terms of each row, and the function of the sums.

    >>> hits = np.array([1.0, 0.0, 1.0, 1.0])
    >>> RowSums(hits[:, None], lambda sums: sums[..., 0] / 4).value
    0.75
    """

    values: np.ndarray  # (N,K) terms of each row
    combine: Callable[[np.ndarray], np.ndarray]  # sums (...,K) to the metric (...)
    block: int = 1  # size of blocks of neighbouring rows that are resampled together, such as the steps of one forecast

    @property
    def value(self) -> float:
        """The metric over all rows."""
        return float(self.combine(self.values.sum(0)))


class Interval(NamedTuple):
    """A value with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def facts(self) -> dict[str, float]:
        """The entry of evaluation.json."""
        return self._asdict()

    @property
    def has_zero(self) -> bool:
        return self.low <= 0 <= self.high


def mean_of_rows(values: np.ndarray) -> RowSums:
    """A metric that is the mean of one value per row; rows without one (nan) are left out."""
    known = np.isfinite(values)
    parts = np.stack([np.where(known, values, 0.0), known], 1).astype(np.float64)
    return RowSums(parts, lambda sums: ratio(sums[..., 0], sums[..., 1]))


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The ratio of two sums, 0 if the divisor is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=below != 0)


def estimate_interval(ours: RowSums, *, seed: int = 0) -> Interval:
    """The metric with its interval."""
    (sums,) = draw_sums([ours], DRAWS, seed)
    return as_interval(ours.value, ours.combine(sums))


def compare_rows(ours: RowSums, theirs: RowSums, *, seed: int = 0) -> Interval:
    """The interval of our metric minus theirs by a paired bootstrap over the same rows."""
    mine, other = draw_sums([ours, theirs], DRAWS, seed)
    return as_interval(ours.value - theirs.value, ours.combine(mine) - theirs.combine(other))


def standard_error(ours: RowSums, *, seed: int = 0) -> float:
    """The bootstrap standard error of the metric."""
    (sums,) = draw_sums([ours], ERROR_DRAWS, seed)
    return float(np.std(ours.combine(sums)))


def as_interval(value: float, drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, float(low), float(high))


def draw_sums(sides: list[RowSums], draws: int, seed: int) -> list[np.ndarray]:
    """Sums (draws,K) over rows drawn with replacement, the same rows for every model."""
    generator = np.random.default_rng(seed)
    group = group_rows(len(sides[0].values), sides[0].block, generator)
    count = int(group.max(initial=-1)) + 1
    chosen = generator.integers(0, max(1, count), (draws, count)) + count * np.arange(draws)[:, None]
    times = np.bincount(chosen.reshape(-1), minlength=draws * count).reshape(draws, count).astype(np.float64)
    return [times @ group_sums(side.values, group, count) for side in sides]


def group_rows(rows: int, block: int, generator: np.random.Generator) -> np.ndarray:
    """The group of each row: blocks of neighbours, merged at random if there are too many."""
    blocks = -(-rows // block)
    number = np.arange(blocks)
    if blocks > GROUPS:
        number = generator.permutation(blocks) % GROUPS
    return np.repeat(number, block)[:rows]


def group_sums(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Summed terms of each group (groups,K)."""
    return np.stack([np.bincount(group, column, minlength=count) for column in values.T], 1)


def relate(metric: str, difference: Interval) -> str:
    """How the model compares to another, by the interval of the difference.

    >>> relate("accuracy", Interval(0.012, 0.004, 0.021)), relate("rmse", Interval(0.1, -0.2, 0.4))
    ('better than', 'not told apart from')
    """
    if difference.has_zero:
        return "not told apart from"
    return "better than" if gain(metric, difference.value) > 0 else "worse than"

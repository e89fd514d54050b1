"""A baseline within a time budget: it is fitted to more and more training rows while time is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from anyformer.evaluation.baseline_rows import RawRows, sample_rows, take_items
from anyformer.evaluation.learners import MOST_ROWS

FIRST = 250  # training rows of the first attempt, whose time includes imports and is not extrapolated
GROWTH = 8  # largest factor between the rows of two attempts, which limits the extrapolation
MARGIN = 1.5  # times the expected seconds that must be left for an attempt
ROWS_A_SECOND = 2500  # a linear model of small images on one core, with features and earlier attempts

Scored = tuple[str, dict[str, float]]  # a baseline's name and its metrics
Learn = Callable[[Any, RawRows], Scored]  # from the truth and the inputs of some training rows


def learn_in_time(learn: Learn, truth: Any, train: RawRows, seconds: float) -> Scored:
    """The result of `learn` on all training rows, or on as many as fit in about `seconds`; its name then says how
    many."""
    ended = time.perf_counter() + seconds
    count, rows = len(train), min(FIRST, len(train))
    timed: list[tuple[int, float]] = []
    while True:
        part = sample_rows(count, rows, seed=0)
        began = time.perf_counter()
        scored = learn(truth, train) if rows == count else learn(take_items(truth, part), train.take(part))
        timed.append((rows, time.perf_counter() - began))
        if rows == count:
            return scored
        following = rows_in_time(timed, ended - time.perf_counter(), count)
        # A further attempt is worth it with at least twice the rows, or with all of them.
        if following < min(2 * rows, count):
            name, scores = scored
            return f"{name} on {rows:,} of {count:,} rows", scores
        rows = following


def expected_seconds(count: int) -> float:
    """Rough time of a fit on that many rows, before anything was measured."""
    return count / ROWS_A_SECOND


def rows_in_time(timed: list[tuple[int, float]], left: float, count: int) -> int:
    """Rows (at most `count`) that fit in `left` seconds, extrapolated from the rows and seconds of earlier attempts."""
    rows, took = timed[-1]
    if len(timed) == 1:
        return min(count, 4 * rows) if left > took else 0
    earlier, before = timed[-2]
    # Extrapolate linearly from the last two attempts, without the first one; the slope must be positive.
    row = took / rows if len(timed) == 2 else max((took - before) / (rows - earlier), 0.25 * took / rows)
    fit = min(rows + int(max(0.0, left / MARGIN - took) / max(1e-9, row)), GROWTH * rows)
    # Above this count the learner samples rows itself, so that all of them take no longer.
    return count if fit >= min(count, MOST_ROWS) else fit

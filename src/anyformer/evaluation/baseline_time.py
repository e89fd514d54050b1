"""A learner within a given time: it learns from more and more of the training rows, as long as there is time for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from anyformer.evaluation.baseline_rows import RawRows, sample_rows, take_items
from anyformer.evaluation.learners import MOST_ROWS

FIRST = 250  # training rows of the first attempt, which also pays for the imports and says nothing about the time
GROWTH = 8  # times the rows of the next attempt at most: what a small sample says of a large one goes only so far
MARGIN = 1.5  # times the expected seconds that an attempt must have
ROWS_A_SECOND = 2500  # a linear model of small images on one core, its features and the attempts before it included

Scored = tuple[str, dict[str, float]]  # a baseline's name and its metrics
Learn = Callable[[Any, RawRows], Scored]  # from the truth and the inputs of some training rows


def learn_in_time(learn: Learn, truth: Any, train: RawRows, seconds: float) -> Scored:
    """What `learn` finds on all training rows, or on as many as it can within about so many seconds; its name then says
    on how many."""
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
        # Twice the rows tell more for certain; all of them are worth it however few they add, and need no excuse.
        if following < min(2 * rows, count):
            name, scores = scored
            return f"{name} on {rows:,} of {count:,} rows", scores
        rows = following


def expected_seconds(count: int) -> float:
    """About how long a learner takes for so many rows, before anything was measured."""
    return count / ROWS_A_SECOND


def rows_in_time(timed: list[tuple[int, float]], left: float, count: int) -> int:
    """How many of `count` rows the next attempt can learn from in `left` seconds, by the rows and seconds of those
    before it."""
    rows, took = timed[-1]
    if len(timed) == 1:
        return min(count, 4 * rows) if left > took else 0
    earlier, before = timed[-2]
    # In a line from the last two; what the first one took says nothing, and a line must rise.
    row = took / rows if len(timed) == 2 else max((took - before) / (rows - earlier), 0.25 * took / rows)
    fit = min(rows + int(max(0.0, left / MARGIN - took) / max(1e-9, row)), GROWTH * rows)
    # From so many on a learner draws a sample of its own: all of them are as quick.
    return count if fit >= min(count, MOST_ROWS) else fit

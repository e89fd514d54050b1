"""A learner within a time: all rows where they fit, else as many as fit, and its name says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyformer.evaluation import baseline_time
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.baseline_time import FIRST, learn_in_time


class Machine:
    """A clock of our own, and a learner that takes `fixed` seconds, `row` more a row, and `imports` the first time."""

    def __init__(self, row: float, fixed: float = 0.05, imports: float = 1.0) -> None:
        self.row, self.fixed, self.imports, self.now = row, fixed, imports, 0.0
        self.asked: list[int] = []

    def learn(self, truth: Any, rows: RawRows) -> tuple[str, dict[str, float]]:
        assert rows.numbers is not None and np.array_equal(truth, rows.numbers[:, 0])  # each row with its own truth
        self.now += self.fixed + self.row * len(rows) + (0.0 if self.asked else self.imports)
        self.asked.append(len(rows))
        return "boosting", {"accuracy": len(rows)}


def learned(machine: Machine, count: int, seconds: float, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    monkeypatch.setattr(baseline_time.time, "perf_counter", lambda: machine.now)
    values = np.arange(count, dtype=float)
    name, scores = learn_in_time(machine.learn, values, RawRows(numbers=values[:, None]), seconds)
    return name, int(scores["accuracy"])


@pytest.mark.quick
@pytest.mark.parametrize("count", [1, 100, FIRST, 4_000, 40_000])
def test_all_rows_are_learned_from_where_there_is_time(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(row=1e-5)
    assert learned(machine, count, 60.0, monkeypatch) == ("boosting", count)
    assert machine.now < 60 and len(machine.asked) <= 6


@pytest.mark.quick
def test_no_number_of_rows_is_left_with_a_part_of_them_where_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts between the attempts' own: the last one may add few rows, and is worth it."""
    for count in [*range(200, 2_200, 7), *range(7_900, 16_100, 97), 13_209, 40_000]:
        assert learned(Machine(row=1e-5), count, 60.0, monkeypatch) == ("boosting", count)
    # The control: where all rows do not fit, an attempt that would add only few is not begun.
    machine = Machine(row=1e-2, imports=0.0)
    assert learned(machine, 1_900, 26.0, monkeypatch)[1] == machine.asked[-1] == 1_000


@pytest.mark.quick
@pytest.mark.parametrize("seconds", [3.0, 10.0, 60.0])
@pytest.mark.parametrize("row", [1e-3, 5e-3])
def test_the_time_is_kept_and_a_good_part_of_it_is_used(
    row: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    machine = Machine(row=row)
    count = int(3 * seconds / row)  # three times as long as there is time
    name, rows = learned(machine, count, seconds, monkeypatch)
    assert rows < count and name == f"boosting on {rows:,} of {count:,} rows"
    assert machine.now <= seconds
    assert rows * row > seconds / 10 or seconds < 4
    # The control: learning from everything at once takes far too long.
    machine = Machine(row=row)
    machine.learn(np.arange(count, dtype=float), RawRows(numbers=np.arange(count, dtype=float)[:, None]))
    assert machine.now > 2 * seconds


@pytest.mark.quick
def test_however_little_time_there_is_something_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(row=1e-2)
    name, rows = learned(machine, 10_000, 0.1, monkeypatch)
    assert rows == FIRST and machine.asked == [FIRST] and "on 250 of 10,000 rows" in name

"""Rows that follow in time are split by time where nobody says how; what a random split may hide is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anyformer.data.settings import Data, Split
from anyformer.data.splits import TEST
from anyformer.errors import UserError
from anyformer.tasks.prepare import prepare

ROWS = 400
DRAW = np.random.default_rng(7)
LOAD = DRAW.normal(size=ROWS).round(3)
OIL = DRAW.normal(size=ROWS).round(3)
HOURS = np.datetime64("2024-03-01T00", "s") + np.arange(ROWS) * np.timedelta64(1, "h")
DAYS = np.datetime64("2024-03-01", "D") + np.arange(ROWS)


def looked_at(tmp_path: Any, settings: Data | None = None, **columns: Any) -> tuple[list[str], np.ndarray]:
    said: list[str] = []
    table = {name: np.asarray(cells).astype(str).tolist() for name, cells in columns.items()}
    data = settings or Data(target=("y",))
    made = prepare(table, settings=data, cache=tmp_path / "cache", log=said.append)
    return said, np.flatnonzero(np.asarray(made.train.arrays["side"]) == TEST)


def how(said: list[str]) -> str:
    (line,) = [line for line in said if line.startswith("split    train")]
    return "time" if "by time" in line else "group" if "whole groups" in line else "random"


ORDERED: dict[str, tuple[dict[str, Any], str, str]] = {  # columns beside the target, the split, what is said of it
    "every hour": ({"date": HOURS, "load": LOAD}, "time", "data.split.shuffle=true"),
    "shuffled rows": ({"date": DRAW.permutation(HOURS), "load": LOAD}, "time", "data.split.shuffle=true"),
    "several series": ({"store": np.repeat(np.arange(4), 100), "date": np.tile(DAYS[:100], 4), "load": LOAD}, "time",
                       "--task forecast foresees each of them by its own past"),
    "control: days as they come": ({"sold": DRAW.choice(DAYS, ROWS), "load": LOAD}, "random", "data.split.time=sold"),
    "control: no date": ({"load": LOAD}, "random", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERED)
def test_regular_dates_split_by_time(tmp_path: Any, case: str) -> None:
    columns, expected, words = ORDERED[case]
    said, test = looked_at(tmp_path, **columns, y=OIL)
    assert how(said) == expected, said
    notes = [line for line in said if line.startswith("note")]
    assert any(words in line for line in notes) if words else not any("data.split" in line for line in notes), notes
    if "date" in columns:
        dates = np.asarray(columns["date"])
        others = np.setdiff1d(np.arange(ROWS), test)
        assert len(test) >= 40 and dates[test].min() >= np.sort(dates[others])[-5]


def test_shuffle_and_every_other_word_win_over_the_dates(tmp_path: Any) -> None:
    columns: dict[str, Any] = {"date": HOURS, "site": np.arange(ROWS) % 40, "y": OIL}
    columns["load"] = LOAD
    said, _ = looked_at(tmp_path / "a", Data(target=("y",), split=Split(shuffle=True)), **columns)
    assert how(said) == "random" and not any("data.split.time" in line for line in said)
    said, _ = looked_at(tmp_path / "b", Data(target=("y",), split=Split(group="site")), **columns)
    assert how(said) == "group"
    with pytest.raises(UserError, match="shuffle and time"):
        Split(shuffle=True, time="date")


def test_a_class_that_only_the_latest_rows_have_is_drawn_at_random(tmp_path: Any) -> None:
    late = np.where(np.arange(ROWS) < 340, "old", "new")
    said, _ = looked_at(tmp_path / "a", date=HOURS, load=LOAD, y=late)
    assert how(said) == "random" and any("data.split.time=date" in line for line in said)
    mixed = np.where(np.arange(ROWS) % 3 == 0, "old", "new")
    said, _ = looked_at(tmp_path / "b", date=HOURS, load=LOAD, y=mixed)
    assert how(said) == "time"


@pytest.mark.parametrize("name, told", [("user_id", True), ("patient", True), ("colour", False)])
def test_rows_of_one_person_are_told(tmp_path: Any, name: str, told: bool) -> None:
    said, _ = looked_at(tmp_path, **{name: np.arange(ROWS) % 50 + 1000}, load=LOAD, y=OIL)
    notes = [line for line in said if f"data.split.group={name}" in line]
    assert len(notes) == told and (not told or f"50 different {name} in 400 rows" in notes[0])

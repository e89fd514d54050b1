"""Inputs that are the target by another name are told, with the option that leaves them out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Data
from anyformer.tasks.decide import decide

ROWS = 300
DRAW = np.random.default_rng(2)
PRICE = DRAW.normal(100, 9, ROWS).round(3)
KIND = DRAW.choice(["cat", "dog", "cow"], ROWS)
CODE = np.select([KIND == "cat", KIND == "dog"], [3, 7], 5)
CASES: dict[str, tuple[Any, Any, str]] = {  # the target, another column, what is said of it
    "a copy": (PRICE, PRICE, "is a copy of the target y"),
    "another unit": (PRICE, PRICE / 1000 + 4, "is, but for its unit, the target y"),
    "a code": (KIND, CODE, "stands one to one for the target y"),
    "control: noise on it": (PRICE, PRICE + DRAW.normal(0, 0.01, ROWS), ""),
    "control: one code wrong": (KIND, np.where(np.arange(ROWS) == 9, 4, CODE), ""),
    "control: a finer code": (KIND, CODE * 10 + np.arange(ROWS) % 3, ""),
    "control: a number a row": (PRICE.round(0) + np.arange(ROWS) * 1000, DRAW.permutation(ROWS) * 3, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_copy_of_the_target_is_told(case: str) -> None:
    target, other, said = CASES[case]
    columns = {"x": DRAW.normal(size=ROWS).astype(str), "other": other.astype(str), "y": target.astype(str)}
    found = decide(Frame(pa.table(columns), (Source("rows.csv", rows=ROWS),)), Data(target=("y",)))
    told = [note for note in found.notes if "target y" in note]
    assert len(told) == bool(said), told
    if said:
        assert f"other {said}" in told[0] and "--types other=skip" in told[0]


A, B, C = (DRAW.integers(0, 400, ROWS).astype(float) for _ in range(3))
RISE = DRAW.normal(0, 1, ROWS).round(4)
UP = np.where(RISE > 0.1, "up", "down")
MORE: dict[str, tuple[dict[str, Any], Any, str]] = {  # the other columns, the target, what is said
    "a sum": ({"a": A, "b": B}, A + B, "a + b is the target y: a model that reads all of these learns nothing else; "
              "leave one out with --types a=skip"),
    "a difference of three": ({"a": A, "b": B, "c": C}, A - B + C, "a + c - b is the target y"),
    "control: a weighted sum": ({"a": A, "b": B}, A + 2 * B, ""),
    "control: a sum but for one row": ({"a": A, "b": B}, np.where(np.arange(ROWS) == 7, 3, A + B), ""),
    "a bound": ({"a": A, "rise": RISE}, UP, "rise alone tells the classes of y apart: if it is known only where y is, "
                "leave it out with --types rise=skip"),
    "control: one row beyond the bound": ({"rise": RISE}, np.where(np.arange(ROWS) == RISE.argmax(), "down", UP), ""),
    "control: few numbers": ({"rise": RISE.round(0)}, np.where(RISE.round(0) > 0, "up", "down"), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", MORE)
def test_sums_and_bounds_that_are_the_target_are_told(case: str) -> None:
    others, target, said = MORE[case]
    columns = {name: cells.astype(str) for name, cells in (others | {"x": DRAW.normal(size=ROWS), "y": target}).items()}
    found = decide(Frame(pa.table(columns), (Source("rows.csv", rows=ROWS),)), Data(target=("y",)))
    told = [note for note in found.notes if "is the target" in note or "alone tells" in note]
    assert len(told) == bool(said) and all(note.startswith(said) for note in told), told

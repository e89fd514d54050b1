"""A text beside columns is left out where its words add nothing to them, and is read where they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Data
from anyformer.tasks.decide import decide

ROWS = 700
DRAW = np.random.default_rng(5)
NUMBERS = {name: DRAW.normal(size=ROWS).round(4) for name in "abc"}
WORDS = np.array([f"word{at}" for at in range(300)])
NOTE = np.array([" ".join(DRAW.choice(WORDS, 5)) for _ in range(ROWS)])
SAID = DRAW.random(ROWS) < 0.5
TOLD = np.array([note + (" refund" if said else " thanks") for note, said in zip(NOTE, SAID, strict=True)])
COST = NUMBERS["a"] * 2 + NUMBERS["b"] + DRAW.normal(size=ROWS)
CASES: dict[str, tuple[dict[str, Any], Any, dict[str, Any], bool]] = {  # columns, target, settings, whether it is left
    "a price that words say nothing of": (NUMBERS | {"note": NOTE}, COST.round(4), {}, True),
    "a class that words say nothing of": (NUMBERS | {"note": NOTE}, np.where(COST > 0, "high", "low"), {}, True),
    "words that say some of it": (NUMBERS | {"note": TOLD}, (COST + SAID).round(4), {}, False),
    "a class that words say": (NUMBERS | {"note": TOLD}, np.where(COST + 2 * SAID > 1, "high", "low"), {}, False),
    "words that say what a column does": (NUMBERS | {"said": SAID.astype(int), "note": TOLD},
                                          (COST + SAID).round(4), {}, True),
    "asked for": (NUMBERS | {"note": NOTE}, COST.round(4), {"types": ("note=text",)}, False),
    "two columns beside it": ({"a": NUMBERS["a"], "b": NUMBERS["b"], "note": NOTE}, COST.round(4), {}, False),
    "few rows": ({name: cells[:400] for name, cells in (NUMBERS | {"note": NOTE}).items()}, COST[:400].round(4), {},
                 False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_text_that_adds_nothing_is_left_out(case: str) -> None:
    columns, target, settings, left = CASES[case]
    table = pa.table({name: cells.astype(str) for name, cells in (columns | {"y": target}).items()})
    found = decide(Frame(table, (Source("rows.csv", rows=len(table)),)), Data(target=("y",), **settings))
    assert ("note" in [column.name for column in found.inputs]) != left
    assert ("note" in dict(found.dropped)) == left
    if left:
        assert "--types note=text reads it" in dict(found.dropped)["note"]

"""Numbers with decimal commas, separators of thousands and signs: one form a column, kept for new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.columns.base import Column
from anyformer.data.columns.look import look
from anyformer.data.columns.number import Number
from anyformer.data.columns.written import number_form, numbers_written
from anyformer.data.frame import Frame, Source
from anyformer.data.new_rows import parse_rows
from anyformer.data.preprocess import FILE, Preprocess
from anyformer.data.settings import Columns, Data
from anyformer.tasks.prepare import prepare

FORMS: list[tuple[list[str], str | None, list[float]]] = [
    (["12,50", "3,99", "1.234,00"], "1.234,5", [12.5, 3.99, 1234.0]),
    (["1,234", "99", "12,000.5"], "1,234.5", [1234.0, 99.0, 12000.5]),
    (["$12,345", "-$3"], "1,234.5 $", [12345.0, -3.0]),
    (["12 345,50 €", "3,10 €"], "1 234,5 €", [12345.5, 3.1]),
    (["12\u202f345,5", "7,1"], "1 234,5", [12345.5, 7.1]),
    (["1'234.5", "2"], "1'234.5", [1234.5, 2.0]),
    (["12.5%", "3 %"], "1,234.5 %", [12.5, 3.0]),
    (["(1,200)", "5"], "1,234.5", [-1200.0, 5.0]),
    (["1.5", "1e3"], "", [1.5, 1000.0]),  # control: as programs write them
    (["$5", "€4"], None, []),  # control: two currencies are no one number
    (["12 mi", "13 mi"], None, []),
    (["1,2,3", "4,5"], None, []),
    (["A5", "A7"], None, []),
]


@pytest.mark.quick
@pytest.mark.parametrize("words, form, values", FORMS)
def test_a_form_is_seen_and_read(words: list[str], form: str | None, values: list[float]) -> None:
    cells = pa.chunked_array([pa.array(words)])
    assert number_form(cells) == form
    if form is not None:
        assert numbers_written(cells, form).tolist() == values


def test_a_cell_in_another_form_is_no_number() -> None:
    cells = pa.chunked_array([pa.array(["12.5", "1,5", "1.23,4"])])
    assert np.isnan(numbers_written(cells, "1.234,5")).tolist() == [True, False, True]


DRAW = np.random.default_rng(0)
PRICES = DRAW.uniform(1, 9000, 400).round(2)


def euro(value: float) -> str:
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,")) + " €"


def test_the_form_is_told_saved_and_used_for_inputs_target_and_new_rows(tmp_path: Path) -> None:
    rows = [f"{euro(price)};{euro(2 * price + at % 7)}" for at, price in enumerate(PRICES)]
    (tmp_path / "sales.csv").write_text("net;gross\n" + "\n".join(rows) + "\n", encoding="utf-8")
    said: list[str] = []
    data = Data(target=("gross",))
    made = prepare([tmp_path / "sales.csv"], settings=data, cache=tmp_path / "cache", log=said.append)
    assert made.task == "regress"
    assert any("net" in line and "written like 1.234,5 €" in line for line in said), said
    assert any("gross (1.234,5 €)" in line and "--types net=category" in line for line in said), said
    saved = Preprocess.read(tmp_path / "cache" / FILE)
    column, target = (saved.columns or ())[0], saved.target
    assert isinstance(column, Number) and column.form == "1.234,5 €"
    assert target is not None and abs(target.mean[0] - (2 * PRICES + np.arange(400) % 7).mean()) < 300  # type: ignore[attr-defined]
    new = parse_rows([{"net": "1.000,50 €"}, {"net": 1000.5}, {"net": "1000.5"}, {"net": None}], saved)
    assert new.frame.column("net").to_pylist() == [1000.5, 1000.5, None, None]
    assert str(new.bad[2]).endswith("write it like 1.234,5 €") and list(new.bad) == [2]
    assert Column.from_dict(column.to_dict()) == column


NONES: dict[str, tuple[list[Any], str, int]] = {
    "none": (["None"], "number", 40),
    "unknown": (["unknown", "*"], "number", 40),
    "control: other words": (["red", "blue"], "category", 0),
    "control: a word that is no number but a class": (["none"], "category", 0),
}


@pytest.mark.parametrize("case", NONES)
def test_words_for_a_missing_number_are_missing(case: str) -> None:
    words, kind, missing = NONES[case]
    known = ["beta", "alpha"] if case.endswith("class") else [f"{value:.1f}" for value in PRICES]
    cells = [words[at % len(words)] if at % 10 == 0 else known[at % len(known)] for at in range(400)]
    found = look(Frame(pa.table({"x": cells}), (Source("a.csv", rows=400),)), {})["x"]
    assert (found.kind, found.missing) == (kind if kind == "number" or missing else found.kind, missing), found
    assert (found.kind == "number") == (kind == "number")
    if kind == "number":
        column = Number.fit("x", PRICES, Columns())
        read, bad = column.parse_values([words[0], "1.5", "three"])
        assert read.to_pylist() == [None, 1.5, None] and list(bad) == [2]


def dotted(value: float) -> str:
    return f"{value:,.0f}".replace(",", ".")


COUNTS = DRAW.integers(100, 90_000, 400)
LARGE = DRAW.integers(1_000, 90_000, 400)
THOUSANDS: dict[str, tuple[dict[str, list[str]], str]] = {  # the columns, and how `x` is written
    "some below a thousand": ({"x": [dotted(count) for count in COUNTS]}, "1.234,5"),
    "all above, beside millions": (
        {"x": [dotted(count) for count in LARGE], "y": [dotted(count * 1000) for count in LARGE]}, "1.234,5"
    ),
    "all above, beside a decimal comma": (
        {"x": [dotted(count) for count in LARGE], "y": [f"{count},50" for count in range(400)]}, "1.234,5"
    ),
    "control: all above and alone": ({"x": [dotted(count) for count in LARGE]}, ""),
    "control: three decimals": ({"x": [f"{price / 100:.3f}" for price in PRICES]}, ""),
    "control: fewer decimals too": ({"x": [*(dotted(count) for count in COUNTS[1:]), "12.5"]}, ""),
    "control: a decimal point elsewhere": (
        {"x": [f"{price / 100:.3f}" for price in PRICES], "y": [f"{price:.1f}" for price in PRICES]}, ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", THOUSANDS)
def test_points_between_thousands_are_told_from_decimals(case: str) -> None:
    columns, form = THOUSANDS[case]
    found = look(Frame(pa.table(columns), (Source("a.csv", rows=400),)), {})["x"]
    assert (found.kind, found.form) == ("number", form), found
    if form:
        wanted = [int(cell.replace(".", "")) for cell in columns["x"]]
        assert numbers_written(pa.chunked_array([columns["x"]]), found.form).tolist() == wanted

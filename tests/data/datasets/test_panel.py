"""Several series in one table: they are found, spread to a channel each, and new rows are read and answered alike."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer import UserError, load
from anyformer.data.prepared import Prepared
from anyformer.data.settings import Data, SeriesSettings
from anyformer.data.sizes import Sizes
from anyformer.data.targets import Future
from anyformer.tasks.known_tasks import find
from anyformer.tasks.prepare import prepare
from tests.cli import made
from tests.cli.trying import done

DAYS = [str(np.datetime64("2024-01-01") + day) for day in range(60)]
SHOPS = ("Lima", "Oslo", "Rome")
MOODS = np.random.default_rng(0).choice(["glad", "calm", "sad"], 180).tolist()
STEPS = SeriesSettings(look_back=6, horizon=3)


def sales(shop: int, day: int) -> float:
    return 100.0 * (shop + 1) + day


def panel(keep: Any = lambda shop, day: True) -> dict[str, list[Any]]:
    """A row for each shop and day, the shops one after the other."""
    rows = [(DAYS[day], SHOPS[shop], sales(shop, day)) for shop in range(3) for day in range(60) if keep(shop, day)]
    return {name: [row[at] for row in rows] for at, name in enumerate(("day", "shop", "sold"))}


def prepared(folder: Path, table: dict[str, Any], task: str | None = "forecast", **settings: Any) -> Prepared:
    return prepare(table, task=task, settings=Data(**{"series": STEPS} | settings), cache=folder / "cache")


def channels(found: Prepared) -> dict[str, np.ndarray]:
    target = found.preprocess.target
    assert isinstance(target, Future)
    values = target.undo(np.asarray(found.train.values))  # type: ignore[attr-defined]
    return {name: values[:, at] for at, name in enumerate(target.names)}


@pytest.mark.quick
def test_each_series_is_a_channel_on_one_axis_of_time(tmp_path: Path) -> None:
    gaps = {(0, 5), (2, 40)}
    found = prepared(tmp_path, panel(lambda shop, day: (shop, day) not in gaps))
    values = channels(found)
    assert list(values) == ["sold Lima", "sold Oslo", "sold Rome"]
    for shop, name in enumerate(values):
        wanted = [np.nan if (shop, day) in gaps else sales(shop, day) for day in range(60)]
        assert np.allclose(values[name], wanted, atol=1e-3, equal_nan=True)
    assert any(note.startswith("series   3 by shop, each with sold") for note in found.notes)


def test_rows_of_two_columns_and_several_measures_are_series_too(tmp_path: Path) -> None:
    rows = [(day, shop, item, shop + item + at, 7.0 * at) for at, day in enumerate(DAYS) for shop in (1, 2)
            for item in (10, 20)]  # fmt: skip
    table = {name: [row[at] for row in rows] for at, name in enumerate(("date", "store", "sku", "sold", "open"))}
    table["name"] = [f"shop {row[1]}" for row in rows]  # says no more than the store
    found = prepared(tmp_path, table, series=STEPS.replace(by=("store", "sku")))
    values = channels(found)
    assert list(values)[:2] == ["sold 1, 10", "sold 1, 20"] and len(values) == 8
    assert np.allclose(values["sold 2, 20"], 22 + np.arange(60), atol=1e-3)
    assert np.allclose(values["open 1, 10"], 7.0 * np.arange(60), atol=1e-3)
    assert found.facts["dropped"] == {"name": "holds no numbers"}


CASES = {  # the rows, and the task that they show by themselves
    "a panel": (panel(), "forecast"),
    "a few moments of it twice": ({name: cells + cells[:4] for name, cells in panel().items()}, "forecast"),
    "control: words that change from row to row": (panel() | {"mood": MOODS}, ""),
    "control: events, not every day of each": (
        {name: cells[:180:7] for name, cells in panel().items()}, ""
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_panel_shows_itself(case: str, tmp_path: Path) -> None:
    table, task = CASES[case]
    try:
        found = prepared(tmp_path, table, task=None, series=SeriesSettings()).task
    except UserError as error:
        assert "no target column given" in error.line
        found = ""
    assert found == task


def test_a_named_target_stays_one_and_the_word_for_a_forecast_is_told(tmp_path: Path) -> None:
    found = prepared(tmp_path, panel(), task=None, target=("sold",), series=SeriesSettings())
    assert found.task == "regress" and any("--task forecast foresees each" in note for note in found.notes)


BAD = {
    "no such column": ({"by": ("shops",)}, panel(), "data.series.by: rows has no column 'shops'; did you mean 'shop'?"),
    "no time": ({"by": ("shop",)}, {"shop": ["a", "b"] * 30, "sold": [1.5, 2.5] * 30},
                "data.series.by: no column says the time of the rows"),
    "nothing measured": ({"by": ("shop",)}, {n: c for n, c in panel().items() if n != "sold"},
                         "no column holds numbers to forecast"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_panel_is_refused(case: str, tmp_path: Path) -> None:
    series, table, said = BAD[case]
    with pytest.raises(UserError) as error:
        prepared(tmp_path, table, series=STEPS.replace(**series))
    assert said in error.value.line


def test_a_run_of_a_panel_foresees_each_series(tmp_path: Path) -> None:
    table = panel()
    path = made.table(tmp_path / "sales.csv", list(table), [list(row) for row in zip(*table.values(), strict=True)])
    steps = ["--set", "data.series.look_back=6", "--set", "data.series.horizon=3", "--steps", "1", "--progress", "none"]
    done("train", path, *steps, "--out", tmp_path / "run")
    done("predict", tmp_path / "run", path, "-o", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert list(rows[0]) == ["day", "shop", "sold"] and len(rows) == 9
    assert [row["day"][:10] for row in rows[:3]] == ["2024-03-01", "2024-03-02", "2024-03-03"]
    for at, row in enumerate(rows):  # straight lines, which the linear map of the window goes on with
        day = 60 + at % 3
        assert float(row["sold"]) == pytest.approx(sales(SHOPS.index(row["shop"]), day), abs=3.0)
    # The same rows in another order, as well as one that was not trained on: the same answer, and a note.
    mixed = [[DAYS[-1], "Bonn", 5.0], *reversed([list(row) for row in zip(*table.values(), strict=True)])]
    other = made.table(tmp_path / "other.csv", list(table), mixed)
    said = done("predict", tmp_path / "run", other, "-o", tmp_path / "same.csv")
    assert (tmp_path / "same.csv").read_bytes() == (tmp_path / "out.csv").read_bytes()
    assert "1 row of 1 shop not trained on left out, first 'Bonn'" in said.out + said.err
    scored = done("evaluate", tmp_path / "run", path, "--json")
    assert scored.json["rmse"] < 3.0
    past = {f"sold {shop}": [sales(at, day) for day in range(54, 60)] for at, shop in enumerate(SHOPS)}
    (answer,) = load(tmp_path / "run").predict([past])
    assert answer["sold Oslo"] == pytest.approx([float(row["sold"]) for row in rows[3:6]], rel=1e-4)


def test_a_batch_of_many_series_has_fewer_windows() -> None:
    sizes = [Sizes(parts=["series"], numbers=count) for count in (1, 32, 148, 5000)]
    assert [find("forecast").habit(each, start=False).batch_size for each in sizes] == [64, 64, 13, 4]

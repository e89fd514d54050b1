"""Time series: order, windows, the split in time, scaling by training rows alone, holes and bad tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer import UserError
from anyformer.data.datasets.series import SeriesExamples, after, window
from anyformer.data.prepared import Prepared
from anyformer.data.reopen import open_prepared
from anyformer.data.settings import Data, SeriesSettings, Split
from anyformer.data.targets import Future
from anyformer.tasks.prepare import prepare

ROWS = 100


def hours(count: int = ROWS) -> list[str]:
    start = np.datetime64("2024-01-01T00:00:00")
    return [str(start + np.timedelta64(hour, "h")).replace("T", " ") for hour in range(count)]


def columns(count: int = ROWS) -> dict[str, list[Any]]:
    at = np.arange(count)
    return {"date": hours(count), "a": (at * 1.0).tolist(), "b": (100 - 2.0 * at).tolist()}


def prepared(folder: Path, table: dict[str, Any], look_back: int = 8, horizon: int = 4, **settings: Any) -> Prepared:
    steps = SeriesSettings(look_back=look_back, horizon=horizon)
    return prepare(table, task="forecast", settings=Data(series=steps, **settings), cache=folder / "cache")


def undone(made: Prepared, values: torch.Tensor) -> np.ndarray:
    assert isinstance(made.preprocess.target, Future)
    return made.preprocess.target.undo(values.numpy())


@pytest.mark.quick
def test_windows_are_what_came_before_and_targets_what_comes_after(tmp_path: Path) -> None:
    made = prepared(tmp_path, columns())
    assert isinstance(made.train, SeriesExamples) and made.valid is not None and made.test is not None
    assert (len(made.train), len(made.valid), len(made.test)) == (80 - 8 - 4 + 1, 10 - 4 + 1, 10 - 4 + 1)
    for side, first in ((made.train, 8), (made.valid, 80), (made.test, 90)):
        batch = side.batch([0, len(side) - 1])
        assert batch.inputs[0].shape == (2, 8, 2) and batch.targets.shape == (2, 4, 2)
        last = first + len(side) - 1
        assert np.allclose(
            undone(made, batch.inputs[0])[..., 0], [np.arange(s - 8, s) for s in (first, last)], atol=1e-3
        )
        assert np.allclose(undone(made, batch.targets)[..., 0], [np.arange(s, s + 4) for s in (first, last)], atol=1e-3)
        assert np.allclose(
            undone(made, batch.targets)[..., 1], 100 - 2 * undone(made, batch.targets)[..., 0], atol=1e-3
        )
    assert made.test.place(0) == "rows row 91"


def test_the_scale_is_that_of_training_rows_alone(tmp_path: Path) -> None:
    table = columns()
    table["a"][80:] = [1e6] * 20
    target = prepared(tmp_path, table).preprocess.target
    assert isinstance(target, Future)
    assert target.mean[0] == pytest.approx(39.5) and target.deviation[0] == pytest.approx(np.arange(80.0).std())


def test_unsorted_rows_are_put_in_order_and_said(tmp_path: Path) -> None:
    table = columns()
    order = np.random.default_rng(0).permutation(ROWS)
    mixed = {name: [cells[i] for i in order] for name, cells in table.items()}
    sorted_, found = prepared(tmp_path / "one", table), prepared(tmp_path / "two", mixed)
    assert found.train.batch([0, 5]).inputs[0].equal(sorted_.train.batch([0, 5]).inputs[0])
    assert any("were not in the order of date" in note for note in found.notes)
    assert found.train.place(0) == f"rows row {int(np.flatnonzero(order == 8)[0]) + 1}"  # its place in the file


def test_holes_stay_missing_and_constant_columns_are_kept(tmp_path: Path) -> None:
    table = columns() | {"flat": [7.0] * ROWS, "word": ["x"] * ROWS}
    table["a"] = [None if i in (10, 11) else value for i, value in enumerate(table["a"])]
    made = prepared(tmp_path, table)
    batch = made.train.batch([4])
    assert batch.inputs[0].isnan().nonzero()[:, 1].tolist() == [6, 7] and not batch.targets.isnan().any()
    assert (batch.inputs[0][..., 2] == 0).all()  # 7 less its mean
    assert made.facts["dropped"] == {"word": "holds no numbers"}
    assert any("flat" in note and "never changes" in note for note in made.notes)
    assert any("a: " in note and "2 missing" in note for note in made.notes)


def test_the_sealed_folder_opens_to_the_same(tmp_path: Path) -> None:
    made = prepared(tmp_path, columns())
    again = open_prepared(tmp_path / "cache")
    assert again is not None and again.task == "forecast" and again.test is not None and made.test is not None
    assert again.test.batch([0]).inputs[0].equal(made.test.batch([0]).inputs[0])
    assert again.preprocess == made.preprocess and again.test.place(2) == made.test.place(2)


def test_files_that_validate_and_test_come_after(tmp_path: Path) -> None:
    table = columns()
    paths = []
    for name, (a, b) in {"train": (0, 60), "valid": (60, 80), "test": (80, 100)}.items():
        rows = [f"{table['date'][i]},{table['a'][i]},{table['b'][i]}" for i in range(a, b)]
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text("date,a,b\n" + "\n".join(rows) + "\n")
    split = Split(valid_file=(str(paths[1]),), test_file=(str(paths[2]),))
    settings = Data(series=SeriesSettings(look_back=8, horizon=4), split=split)
    made = prepare([paths[0]], task="forecast", settings=settings, cache=tmp_path / "cache")
    assert (len(made.train), len(made.valid or ()), len(made.test or ())) == (60 - 12 + 1, 17, 17)
    assert made.test is not None and made.test.place(0) == "test.csv row 2"


def test_without_settings_the_windows_fit_the_rows(tmp_path: Path) -> None:
    made = prepare(columns(), task="forecast", cache=tmp_path / "cache")
    assert (made.facts["sizes"]["length"], made.facts["sizes"]["outputs"]) == (20, 5)
    one = prepare({"x": list(range(50))}, task="forecast", cache=tmp_path / "one")
    assert one.facts["sizes"]["numbers"] == 1 and any("no column of time" in note for note in one.notes)


def bad(name: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    table = columns()
    if name == "twice":
        table["date"][50:60] = table["date"][40:50]
        return table, {}, "row 51: the time '2024-01-02 16:00:00' comes twice, as 10 do; give one series a file"
    if name == "no-time":
        table["date"][50] = None
        return table, {}, "row 51: the time 'None' cannot be read"
    if name == "no-numbers":
        return {"word": ["x", "y"] * 50}, {}, "no column holds numbers to forecast"
    if name == "unknown":
        return table, {"target": ("c",)}, "has no column 'c'"
    if name == "word-target":
        return table | {"word": ["x", "y"] * 50}, {"target": ("word",)}, "word holds no numbers"
    if name == "too-long":
        return table, {"look_back": 90}, "80 rows to train on are fewer than 90 back and 4 ahead"
    return table, {"horizon": 20}, "10 rows to valid are fewer than the 20 ahead"


@pytest.mark.parametrize(
    "name", ["twice", "no-time", "no-numbers", "unknown", "word-target", "too-long", "too-far"]
)  # fmt: skip
def test_a_bad_table_is_one_error_with_its_place(tmp_path: Path, name: str) -> None:
    table, settings, said = bad(name)
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, table, **settings)
    assert said in str(refused.value) and len(str(refused.value)) <= 300
    assert not (tmp_path / "cache").exists()  # a mistake leaves nothing behind


def test_settings_below_one_are_refused() -> None:
    for settings in ({"look_back": 1}, {"horizon": 0}):
        with pytest.raises(UserError, match="is below"):
            SeriesSettings(**settings)


def test_times_go_on_by_their_usual_step_and_windows_reach_before_the_start() -> None:
    moments = np.array(hours(5), "datetime64[s]")
    assert [str(m) for m in after(moments, 2)] == ["2024-01-01T05:00:00", "2024-01-01T06:00:00"]
    found = window(np.arange(6.0)[:, None], np.array([2]), 4)
    assert np.isnan(found[0, :2, 0]).all() and found[0, 2:, 0].tolist() == [0.0, 1.0]

"""Annotated images and series are recognised by looking; what is something else is left alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.data.settings import Data, SeriesSettings
from anyformer.errors import UserError, did_you_mean
from anyformer.tasks.prepare import prepare
from tests.training.test_detection import annotated


def looked_at(source: Path, cache: Path, **words: Any) -> tuple[Any, list[str]]:
    said: list[str] = []
    return prepare([source], cache=cache, log=said.append, **words), said


# ---------------------------------------------------------------- images with boxes


def beside(folder: Path) -> Path:
    return annotated(folder, 8).parent


def in_annotations(folder: Path) -> Path:
    file = annotated(folder, 8)
    (folder / "annotations").mkdir()
    shutil.move(file, folder / "annotations" / "instances_train.json")
    shutil.move(folder / "images", folder / "train")
    (folder / "annotations" / "captions_train.json").write_text('{"images": [], "annotations": [{"caption": "a"}]}')
    return folder


def a_folder_a_side(folder: Path) -> Path:
    for side, start in (("train", 0), ("valid", 40), ("test", 80)):
        file = annotated(folder / side, 8, start=start)
        for image in (folder / side / "images").iterdir():
            shutil.move(image, folder / side / image.name)
        shutil.move(file, folder / side / "_annotations.coco.json")
    return folder


@pytest.mark.parametrize("layout", [beside, in_annotations, a_folder_a_side])
def test_annotated_images_are_taken_for_detection(tmp_path: Path, layout: Any) -> None:
    made, said = looked_at(layout(tmp_path / "data"), tmp_path / "cache")
    assert made.task == "detect" and said[0].endswith("holds boxes as COCO writes them"), said
    if layout is a_folder_a_side:
        assert [len(made.train), len(made.valid), len(made.test)] == [8, 8, 8]


def test_the_json_alone_is_enough(tmp_path: Path) -> None:
    made, said = looked_at(annotated(tmp_path / "data", 8), tmp_path / "cache")
    assert made.task == "detect" and "coco.json holds boxes" in said[0]


def test_other_json_and_folders_of_classes_are_left_alone(tmp_path: Path) -> None:
    rows = [{"a": at % 5, "label": "ab"[at % 2]} for at in range(40)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    made, _ = looked_at(tmp_path / "rows.json", tmp_path / "one")
    assert made.task == "classify"
    file = annotated(tmp_path / "data", 8)
    for kind in ("light", "dark"):
        shutil.copytree(tmp_path / "data" / "images", tmp_path / "classes" / kind)
    made, _ = looked_at(tmp_path / "classes", tmp_path / "two")
    assert made.task == "classify"
    with pytest.raises(UserError):  # a task that was asked for wins
        looked_at(file, tmp_path / "three", task="classify")


# ---------------------------------------------------------------- series


def table(path: Path, times: Any, **columns: Any) -> Path:
    rows = [
        ",".join(["time", *columns]),
        *(",".join(map(str, row)) for row in zip(times, *columns.values(), strict=True)),
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


HOURS = np.datetime64("2024-01-01T00") + np.arange(400) * np.timedelta64(1, "h")
MONTHS = (np.datetime64("1990-01") + np.arange(400)).astype("datetime64[D]")
WORKDAYS = np.array([day for day in np.arange("2022-01-01", "2024-01-01", dtype="datetime64[D]") if np.is_busday(day)])
WAVE = np.round(np.sin(np.arange(400) / 12), 3)


@pytest.mark.parametrize("times", [HOURS, MONTHS, WORKDAYS[:400], np.arange(400), HOURS[::-1]])
def test_equal_steps_of_time_are_forecast(tmp_path: Path, times: np.ndarray) -> None:
    made, said = looked_at(table(tmp_path / "weather.csv", times, rain=WAVE, wind=WAVE + 1), tmp_path / "cache")
    assert made.task == "forecast" and any("goes on in equal steps" in line for line in said), said


@pytest.mark.parametrize("case", ["uneven", "twice", "words", "label", "few", "asked"])
def test_tables_that_are_no_series_are_left_alone(tmp_path: Path, case: str) -> None:
    times = {"uneven": HOURS[np.unique(np.geomspace(1, 399, 60).astype(int))], "twice": np.repeat(HOURS[:200], 2)}
    moments = times.get(case, HOURS[:20] if case == "few" else HOURS)
    columns: dict[str, Any] = {"rain": WAVE[: len(moments)]}
    if case == "words":
        columns["sky"] = ["clear" if at % 3 else "grey" for at in range(len(moments))]
    if case == "asked":
        columns["wind"] = WAVE + 1  # rain may be told from it
    if case == "label":
        columns["label"] = ["ab"[at % 2] for at in range(len(moments))]
    path = table(tmp_path / "a.csv", moments, **columns)
    settings = Data(target=("rain",)) if case == "asked" else None
    if case in ("label", "asked"):
        made, _ = looked_at(path, tmp_path / "cache", settings=settings)
        assert made.task == ("classify" if case == "label" else "regress")
    else:
        with pytest.raises(UserError, match="no target column given"):
            looked_at(path, tmp_path / "cache")


@pytest.mark.parametrize("case", ["alone", "called y", "horizon"])
def test_a_target_beside_nothing_but_the_time_is_forecast(tmp_path: Path, case: str) -> None:
    columns = {"y": WAVE} if case == "called y" else {"rain": WAVE} | ({"wind": WAVE} if case == "horizon" else {})
    settings = {"alone": Data(target=("rain",)), "horizon": Data(target=("rain",), series=SeriesSettings(horizon=8))}
    path = table(tmp_path / "a.csv", HOURS, **columns)
    made, said = looked_at(path, tmp_path / "cache", settings=settings.get(case))
    assert made.task == "forecast" and list(made.preprocess.target.names) == [next(iter(columns))], said


def test_names_that_look_the_same_are_told_apart() -> None:
    assert did_you_mean("age", ["\u0430ge", "size"]) == "did you mean '\u0430ge' (its character 1 is U+0430)?"
    assert did_you_mean("age", ["age\u200b"]) == "did you mean 'age\\u200b' (its character 4 is U+200B)?"
    assert did_you_mean("age", ["Age"]) == "did you mean 'Age'?"

"""Whether a target's values are classes, numbers or lists of labels, each rule beside a neighbour that it leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from anyformer.data.decision import Decision
from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Data
from anyformer.data.targets import Classes, Target
from anyformer.tasks import find
from anyformer.tasks.decide import decide
from anyformer.tasks.prepare import prepare

DRAW = np.random.default_rng(5)
ROWS = 2000
TEXT = [f"the {i} fox saw a dog near the {i % 7} river" for i in range(ROWS)]
SIZE = DRAW.normal(size=ROWS).round(4).astype(str).tolist()
SEX = DRAW.choice(["m", "f"], ROWS).tolist()


def decided(name: str, values: Any, **inputs: Any) -> Decision:
    words = [str(value) for value in values]
    columns = {key: cells[: len(words)] for key, cells in inputs.items()} | {name: words}
    return decide(Frame(pa.table(columns), (Source("rows.csv", rows=len(words)),)), Data(target=(name,)))


ALIKE = DRAW.integers(0, 151, ROWS)
POINTS = DRAW.normal(88, 12, ROWS).round().astype(int)
VISITS = np.minimum(DRAW.poisson(5, ROWS), 13)
SHOP = {"sex": SEX, "region": DRAW.choice(["a", "b", "c"], ROWS).tolist()}
BY_FREQUENCY = np.repeat(np.arange(25), (ROWS / 5 * 0.8 ** np.arange(25)).round().astype(int) + 1)[:ROWS]
CASES = {  # the column, its values, the inputs, what is asked for
    "151 intents": ("label", ALIKE, {"text": TEXT}, "classify"),
    "intents of few rows": ("intent", ALIKE[:900] % 30, {"text": TEXT}, "classify"),
    "classes of texts by no name": ("answer", ALIKE % 77, {"text": TEXT}, "classify"),
    "control: a measure of texts": ("answer", POINTS, {"text": TEXT}, "regress"),
    "control: points of texts": ("points", ALIKE, {"text": TEXT}, "regress"),
    "control: numbers beside numbers": ("answer", ALIKE, {"size": SIZE}, "regress"),
    "control: a code in every row": ("label", np.arange(ROWS), {"text": TEXT}, "regress"),
    "counts beside categories": ("calls_made", VISITS, SHOP, "regress"),
    "counts by name": ("visits", DRAW.integers(0, 14, ROWS), SHOP, "regress"),
    "control: sorts beside categories": ("sort", DRAW.integers(0, 14, ROWS), SHOP, "classify"),
    "classes by frequency": ("target", BY_FREQUENCY, {"size": SIZE}, "classify"),
    "control: counts of nothing": ("docvis", DRAW.negative_binomial(0.5, 0.1, ROWS), {"size": SIZE}, "regress"),
}


@pytest.mark.parametrize("case", CASES)
def test_whole_numbers_are_classes_or_a_quantity(case: str) -> None:
    name, values, inputs, expected = CASES[case]
    found = decided(name, values, **inputs)
    assert found.task.name == expected, found.why
    if expected == "classify":
        assert "if they measure something: --task regress" in found.why


@pytest.mark.parametrize("names", [[str(at) for at in range(1, 26)], ["cat", "dog"]])
def test_folders_name_classes_whatever_they_are_called(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / "all" / name).mkdir(parents=True)
        for number in range(4):
            pixels = DRAW.integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "all" / name / f"{number}.png")
    said: list[str] = []
    made = prepare([tmp_path / "all"], cache=tmp_path / "cache", log=said.append)
    assert made.task == "classify" and len(made.preprocess.labels or ()) == len(names)
    assert any("named by folders" in line and "--task regress" in line for line in said) == (len(names) > 10)
    asked = [tmp_path / "all"]
    if len(names) > 10:
        assert prepare(asked, task="regress", cache=tmp_path / "asked").task == "regress"


LISTS = {
    "commas": (["a", "b", "a, b", "a, c", "b, c", "a, b, c"], ","),
    "bars": (["Drama", "Comedy", "Comedy|Drama", "Action|Drama", "Action", "Action|Comedy"], "|"),
    "semicolons": (["a;b", "b;c", "a"], ";"),
    "control: towns": (["Boston, MA", "Salem, MA", "Bonn", "Chicago, IL", "Peoria, IL"], None),
    "control: two traits": (["red, small", "red, large", "blue, small", "blue, large"], None),
    "control: alone": (["a", "b", "c"], None),
}


@pytest.mark.parametrize("case", LISTS)
def test_labels_of_one_cell_are_told_apart_by_their_mark(tmp_path: Path, case: str) -> None:
    words, mark = LISTS[case]
    cells = [words[at % len(words)] for at in range(600)]
    found = decided("labels", cells, text=TEXT)
    assert (found.form, found.separator if mark else None) == ("list" if mark else "one", mark), found.why
    if mark is None:
        return
    assert "--types labels=category" in found.why
    frame = Frame(pa.table({"labels": cells}), (Source("rows.csv", rows=len(cells)),))
    target = find("classify").fit_target(frame, found, Data(), None)
    parts = {part.strip() for word in words for part in word.split(mark)}
    assert isinstance(target, Classes) and set(target.labels) == parts
    saved = Target.from_dict(json.loads(json.dumps(target.to_dict())))
    first = saved.encode(frame).values[: len(words)].sum(1)
    assert first.tolist() == [len(word.split(mark)) for word in words]
    rows = Frame(pa.table({"text": TEXT[:600], "labels": cells}), (Source("rows.csv", rows=600),))
    whole = decide(rows, Data(target=("labels",), types=("labels=category",)))
    assert whole.form == "one"

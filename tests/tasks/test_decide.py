"""Decisions: which task, which target, which columns; what is left out and why; and errors that name the way out."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.decision import lines
from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Data, Split
from anyformer.errors import UserError
from anyformer.tasks import find
from anyformer.tasks.decide import decide

ROWS = 200
DRAW = np.random.default_rng(0)
WORDS = "the rose is red and violets are blue but oaks stand tall in old woods near a quiet lake".split()
TEXT = [" ".join(DRAW.choice(WORDS, 9)) for _ in range(ROWS)]
OTHER = [" ".join(DRAW.choice(WORDS, 7)) for _ in range(ROWS)]
PRICE = [f"{x:.3f}" for x in DRAW.normal(100, 9, ROWS)]
SIZE = [f"{x:.3f}" for x in DRAW.normal(10, 2, ROWS)]
CITY = DRAW.choice(["Rom", "Bonn", "Oslo"], ROWS).tolist()
YES = DRAW.choice(["yes", "no"], ROWS).tolist()
BIT = DRAW.choice(["0", "1"], ROWS).tolist()
BIT2 = DRAW.choice(["0", "1"], ROWS).tolist()
STARS = DRAW.integers(1, 6, ROWS).astype(str).tolist()


def frame_of(**columns):
    return Frame(pa.table(columns), (Source("rows.csv", rows=len(next(iter(columns.values()))), first=2),))


@pytest.mark.quick
@pytest.mark.parametrize(
    "columns, target, expected",
    [
        ({"x": SIZE, "price": PRICE}, ("price",), ("regress", "one")),
        ({"x": SIZE, "y": STARS}, None, ("classify", "one")),
        ({"x": SIZE, "Label": YES}, None, ("classify", "one")),
        ({"text": TEXT, "ok": [True, False] * 100}, ("ok",), ("classify", "one")),
        ({"text": TEXT, "label": [f"{a};{b}" for a, b in zip(CITY, YES, strict=True)]}, None, ("classify", "list")),
        ({"text": TEXT, "label": [[a, b] for a, b in zip(CITY, YES, strict=True)]}, None, ("classify", "list")),
        ({"text": TEXT, "a": BIT, "b": BIT2}, ("a", "b"), ("classify", "columns")),
        ({"x": SIZE, "a": PRICE, "b": STARS}, ("a", "b"), ("regress", "one")),
        ({"en": TEXT, "de": OTHER}, None, ("translate", "one")),
        ({"text": TEXT, "title": OTHER}, ("title",), ("translate", "one")),
        ({"w": [t.split() for t in TEXT], "tag": [["A"] * 9] * ROWS}, ("tag",), ("tag", "one")),
    ],
)
def test_the_task_is_seen_in_the_target(columns, target, expected):
    found = decide(frame_of(**columns), Data(target=target))
    assert (found.task.name, found.form) == expected


def test_a_task_that_is_said_wins():
    frame = frame_of(x=SIZE, y=STARS)
    assert decide(frame, Data(), task=find("regress")).task.name == "regress"
    assert decide(frame, Data(), task=find("classify")).task.name == "classify"


def test_whole_numbers_are_classes_while_they_are_few():
    few = [str(i % 21) for i in range(ROWS)]
    assert decide(frame_of(x=SIZE, y=[str(i % 20) for i in range(ROWS)]), Data()).task.name == "classify"
    assert decide(frame_of(x=SIZE, y=few), Data()).task.name == "regress"  # 21 values are above 2 % of 200 rows
    many = frame_of(x=[f"{i / 7:.4f}" for i in range(4000)], y=[str(i % 60) for i in range(4000)])
    assert decide(many, Data()).task.name == "classify"


LINES = 2000
COUNTED = np.random.default_rng(3)
RINGS = np.clip(np.round(COUNTED.normal(10, 3.2, LINES)), 1, 29).astype(int)
TARGETS = {  # whole numbers as people have them: how the column is called, the values, what they ask for
    "rings of an animal": ("target", RINGS, "regress"),
    "ages": ("age", COUNTED.integers(18, 80, LINES), "regress"),
    "rooms let a day": ("demand", COUNTED.poisson(12, LINES), "regress"),
    "points of an exam": ("result", COUNTED.binomial(40, 0.6, LINES), "regress"),
    "years of school": ("years_of_school", COUNTED.integers(1, 17, LINES), "regress"),
    "prices": ("y", COUNTED.integers(100, 90_000, LINES), "regress"),
    "digits": ("target", COUNTED.integers(0, 10, LINES), "classify"),
    "activities 1 to 6": ("target", COUNTED.integers(1, 7, LINES), "classify"),
    "0 and 1": ("target", (COUNTED.random(LINES) < 0.2).astype(int), "classify"),
    "grades of wine": ("quality", np.clip(np.round(COUNTED.normal(5.6, 0.8, LINES)), 3, 8).astype(int), "classify"),
    "letters by number": ("y", COUNTED.integers(0, 16, LINES), "classify"),
    "named classes": ("class", RINGS, "classify"),
    "sorts of a shop": ("y", COUNTED.choice(18, LINES, p=COUNTED.dirichlet(np.ones(18))), "classify"),
}


@pytest.mark.parametrize("case", TARGETS)
def test_whole_numbers_that_measure_something_are_a_regression(case):
    name, values, expected = TARGETS[case]
    size = COUNTED.normal(size=LINES).round(4).astype(str).tolist()
    frame = frame_of(x=size, **{name: values.astype(str).tolist()})
    found = decide(frame, Data(target=(name,)))
    assert found.task.name == expected, found.why
    if len(set(values.tolist())) <= 20:
        assert ("--task classify" in found.why) == (expected == "regress")
        assert decide(frame, Data(target=(name,)), task=find("classify")).task.name == "classify"


def test_numbers_of_classes_beside_texts_are_told_by_their_name_alone():
    words = [f"the {i} fox saw a dog near the {i % 7} river" for i in range(LINES)]
    assert decide(frame_of(text=words, y=RINGS.astype(str).tolist()), Data()).task.name == "classify"
    named = frame_of(text=words, score=RINGS.astype(str).tolist())
    assert decide(named, Data(target=("score",))).task.name == "regress"


def test_a_target_is_guessed_only_where_one_column_is_named_like_it():
    with pytest.raises(UserError, match=r"no target column given \(columns: x, city\); add --target"):
        decide(frame_of(x=SIZE, city=CITY), Data())
    with pytest.raises(UserError, match="no target column given"):
        decide(frame_of(x=SIZE, label=YES, y=STARS), Data())


@pytest.mark.parametrize(
    "settings",
    [
        Data(target=("prise",)), Data(target=("price",), inputs=("prise",)),
        Data(target=("price",), types=("prise=number",)),
        Data(target=("price",), split=Split(group="prise")), Data(target=("price",), split=Split(time="prise")),
        Data(target=("price",), split=Split(column="prise")),
    ],
)  # fmt: skip
def test_a_wrong_column_name_gets_the_right_one(settings):
    with pytest.raises(UserError, match=r"rows.csv has no column 'prise'; did you mean 'price'\?"):
        decide(frame_of(x=SIZE, price=PRICE), settings)


def test_columns_that_do_not_help_are_left_out_with_the_reason():
    found = decide(
        frame_of(id=[str(i) for i in range(ROWS)], same=["k"] * ROWS, who=CITY, x=SIZE, c=CITY, label=YES),
        Data(split=Split(group="who"), types=("c=skip",)),
    )
    assert [column.name for column in found.inputs] == ["x"]
    reasons = dict(found.dropped)
    assert "id" in reasons["id"] and "one value" in reasons["same"]
    assert reasons["who"] == "says the group" and reasons["c"] == "left out as asked"


@pytest.mark.parametrize("name, kept", [("year", True), ("sales_year", True), ("row", False), ("number", False)])
def test_years_that_count_the_rows_are_no_id(name, kept):
    years = [str(1700 + at) for at in range(ROWS)]
    found = decide(frame_of(**{name: years, "x": SIZE, "price": PRICE}), Data(target=("price",)))
    assert ([column.name for column in found.inputs] == [name, "x"]) == kept
    assert (name in dict(found.dropped)) == (not kept)


def test_inputs_and_types_that_are_asked_for_win():
    frame = frame_of(id=[str(i) for i in range(ROWS)], x=SIZE, stars=STARS, label=YES)
    assert [c.name for c in decide(frame, Data(inputs=("id",))).inputs] == ["id"]
    kinds = {c.name: c.kind for c in decide(frame, Data(types=("stars=category",))).inputs}
    assert kinds == {"x": "number", "stars": "category"}


@pytest.mark.parametrize(
    "columns, settings, task, words",
    [
        (
            {"x": SIZE, "label": [f"name {i}" for i in range(ROWS)]},
            Data(),
            None,
            "200 different values in 200 rows, too many",
        ),
        ({"x": SIZE, "label": YES}, Data(inputs=("x", "label")), None, "input and target at once"),
        ({"x": SIZE, "label": YES}, Data(), "regress", "label holds no numbers"),
        ({"x": SIZE, "label": YES}, Data(), "tag", "holds no lists of tags"),
        ({"x": SIZE, "label": YES}, Data(), "clasify", "did you mean 'classify'"),
        ({"x": SIZE, "label": [""] * ROWS}, Data(), None, "every value of label is missing"),
        ({"k": ["a"] * ROWS, "label": YES}, Data(), None, "no column to learn from is left"),
        ({"x": SIZE, "a": BIT, "b": CITY}, Data(target=("a", "b")), None, "b holds no numbers"),
        ({"x": SIZE, "a": BIT, "b": CITY}, Data(target=("a", "b")), "classify", "b holds 'bonn'"),
        ({"en": TEXT, "fr": OTHER, "z": PRICE}, Data(), None, "no target column given"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(columns, settings, task, words):
    with pytest.raises(UserError) as error:
        decide(frame_of(**columns), settings, task=find(task) if task else None)
    assert words in str(error.value) and len(str(error.value)) <= 300 and "\n" not in str(error.value)


def test_a_decision_is_told_in_aligned_lines_and_kept_as_json():
    frame = frame_of(age=[str(i % 91) if i % 9 else "" for i in range(ROWS)], city=CITY, key=["k"] * ROWS, label=YES)
    found = decide(frame, Data())
    said = lines(found, frame)
    assert said[0].startswith("task     classify") and "'label' is named like a target" in said[0]
    assert said[1].split() == ["column", "age", "number", "0..90,", "23", "missing"]
    assert said[1].index("number") == said[2].index("category")
    assert said[3].startswith("left out key")
    assert json.loads(json.dumps(found.plain()))["columns"]["age"] == {"kind": "number", "missing": 23}

"""What a column is, is told from all of its cells, and said in words."""

from __future__ import annotations

import datetime
import uuid
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyformer.data.columns import convert
from anyformer.data.columns import look as looking
from anyformer.data.columns.convert import MISSING, date_form, days, numbers, strings
from anyformer.data.columns.look import Facts, look
from anyformer.data.frame import Frame, Source
from anyformer.errors import UserError

R = Random(0)
ROWS = 120


def facts(values: list[Any] | pa.Array, name: str = "column", asked: str | None = None, folder: str = "") -> Facts:
    sources = (Source("a.csv", f"{folder}/a.csv" if folder else "", len(values)),)
    column = values if isinstance(values, pa.Array) else pa.array(values)
    return look(Frame(pa.table({name: column}), sources), {name: asked} if asked else {})[name]


def times(*values: Any) -> list[Any]:
    return [values[at % len(values)] for at in range(ROWS)]


SENTENCES = [" ".join(R.choices("the cat sat on a mat and saw two dogs run by".split(), k=9)) for _ in range(ROWS)]
DAY = datetime.date(2020, 1, 30)
DAYS = [DAY + datetime.timedelta(at) for at in range(ROWS)]
KINDS: list[tuple[str, list[Any], str]] = [
    ("whole numbers", times("1", "20", "-3", "+4"), "number"),
    ("numbers", times("1.5", "-2e-3", ".5", "7.", "1E6"), "number"),
    ("numbers with spaces", times(" 1", "2 ", " 3 "), "number"),
    ("numbers with gaps", times("1", "", "NA", "4", "?", "null"), "number"),
    ("postal codes", times("00123", "90210", "10115"), "number"),
    ("a few words among numbers", [*times("1", "2")[:-1], "oops"], "number"),
    ("too many words among numbers", times(*"1 2 3 4 5 6 7 8 9 oops".split()), "category"),
    ("words", times("red", "green", "blue"), "category"),
    ("words with gaps", times("red", "", "?", "blue"), "category"),
    ("truths as words", times("true", "false"), "category"),
    ("phrases that come again", times("New York", "San Francisco", "Los Angeles"), "category"),
    ("many words that come again", times(*[f"w{at}" for at in range(50)]), "category"),
    ("thousands", times("1,234", "5,678"), "number"),
    ("sentences", SENTENCES, "text"),
    ("a few sentences that come again", times(*SENTENCES[:100]), "text"),
    ("different words", ["".join(R.choices("abcdefgh", k=12)) for _ in range(ROWS)], "text"),
    ("formulas", [f"C{at}(=O){R.choice('CNO')}c{at % 7}" for at in range(ROWS)], "text"),
    ("days in digits", [f"{day:%Y%m%d}" for day in DAYS], "date"),
    ("control: digits that are no days", [str(20200101 + 37 * at) for at in range(ROWS)], "number"),
    ("quarters", times("1990 Q1", "1990Q2", "1990-Q4"), "date"),
    ("months behind their year", times("1939 Jan", "1939 Feb", "1940 Dec"), "date"),
    ("iso days", [str(day) for day in DAYS], "date"),
    ("iso times", [f"{day}T10:20:30" for day in DAYS], "date"),
    ("iso times with zones", [f"{day} 10:20:30.5+02:00" for day in DAYS], "date"),
    ("days with slashes", [day.strftime("%Y/%m/%d") for day in DAYS], "date"),
    ("German days", [day.strftime("%d.%m.%Y") for day in DAYS], "date"),
    ("American days", [day.strftime("%m/%d/%Y") for day in DAYS], "date"),
    ("British days", [day.strftime("%d/%m/%Y") for day in DAYS], "date"),
    ("days with gaps", times("2020-01-31", "", "NA", "2021-02-28"), "date"),
    ("days that could be months", times("01/02/2020", "03/04/2020"), "category"),
    ("no days", times("2020-13-45", "2020-99-99"), "category"),
    ("typed integers", times(1, 2, None), "number"),
    ("typed floats", times(0.5, float("nan"), 3.0), "number"),
    ("typed truths", times(True, False, None), "category"),
    ("typed days", DAYS, "date"),
    ("typed moments", [datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=at) for at in range(ROWS)], "date"),
    ("lists of words", times(["a", "b"], ["c"], []), "text"),
]


@pytest.mark.quick
@pytest.mark.parametrize("name, values, kind", KINDS, ids=[case[0] for case in KINDS])
def test_the_kind_of_a_column_is_told_with_a_reason(name: str, values: list[Any], kind: str) -> None:
    found = facts(values)
    assert found.kind == kind, found
    assert found.dropped is None and found.reason and len(found.reason) < 120 and found.rows == ROWS
    assert 1 <= len(found.examples) <= 3 and all(len(example) <= 30 for example in found.examples)


DROPPED: list[tuple[str, str, list[Any], str]] = [
    ("one word", "x", times("same"), "one value only"),
    ("one number", "x", times(7), "one value only"),
    ("nothing", "x", times("", "NA", "?", None), "all missing"),
    ("typed nothing", "x", times(None), "all missing"),
    ("nan alone", "x", times(float("nan")), "all missing"),
    ("counted", "x", [str(at) for at in range(ROWS)], "looks like an id"),
    ("counted from 5,000", "x", list(range(5000, 5000 + ROWS)), "looks like an id"),
    ("numbered at random", "customer_id", R.sample(range(10**6), ROWS), "looks like an id"),
    ("camel case", "userId", R.sample(range(10**6), ROWS), "looks like an id"),
    ("universal", "x", [str(uuid.UUID(int=R.getrandbits(128))) for _ in range(ROWS)], "looks like an id"),
    ("hashes", "x", [f"{R.getrandbits(128):032x}" for _ in range(ROWS)], "looks like an id"),
    ("named", "id", [f"row-{at}" for at in range(ROWS)], "looks like an id"),
    ("numbered by two", "qid2", [R.randrange(2 * ROWS) for _ in range(ROWS)], "named like an id"),
    ("codes", "x", [f"C-{at:05}" for at in range(ROWS)], "codes, nearly all different"),
    ("e-mail addresses", "x", [f"{R.choice(['ann', 'bob'])}.{at}@mail.org" for at in range(ROWS)], "--types x=text"),
    ("web addresses", "x", [f"https://site.org/{at}" for at in range(ROWS)], "web addresses"),
    ("user names", "user name", ["".join(R.choices("abcdefgh", k=12)) for _ in range(ROWS)], "'user name=text'"),
    ("bytes", "x", times(b"\xff\x00", b"a"), "bytes"),
    ("lists of numbers", "x", times([1, 2], [3]), "lists of numbers"),
]


@pytest.mark.parametrize("case, name, values, why", DROPPED, ids=[case[0] for case in DROPPED])
def test_what_cannot_help_is_left_out_and_says_why(case: str, name: str, values: list[Any], why: str) -> None:
    found = facts(values, name)
    assert found.dropped is not None and why in found.dropped and found.reason == found.dropped


KEPT: list[tuple[str, str, list[Any]]] = [
    ("different real numbers", "x", [R.random() for _ in range(ROWS)]),
    ("different whole numbers", "x", R.sample(range(10**6), ROWS)),
    ("numbers that come again", "qid1", [R.randrange(ROWS // 3) for _ in range(ROWS)]),
    ("words of few rows", "x", ["C-00001", "C-00002", "C-00003"]),
    ("codes that come again", "x", [f"C-{R.randrange(ROWS // 2):05}" for _ in range(ROWS)]),
    ("ids that come again", "user_id", times(*range(30))),
    ("a few years", "year", list(range(2010, 2020))),
    ("words that end alike", "humid", times("1", "2")),
    ("one value or nothing", "x", times("yes", "")),
    ("different texts", "x", [f"{sentence} {at}" for at, sentence in enumerate(SENTENCES)]),
]


@pytest.mark.parametrize("case, name, values", KEPT, ids=[case[0] for case in KEPT])
def test_what_can_help_stays(case: str, name: str, values: list[Any]) -> None:
    assert facts(values, name).dropped is None


def test_counts_are_exact_up_to_ten_thousand() -> None:
    found = facts([str(at % 10_000) for at in range(30_000)])
    assert found.unique == 10_000
    assert facts([str(at % 10_001) for at in range(30_000)]).unique == "many"
    found = facts(times("a", "", " NA ", None, "b"))
    assert found.missing == ROWS * 3 // 5 and found.unique == 2 and found.examples == ("a", "b")
    assert facts([*times("1", "2")[:-1], "oops"]).odd == 1
    assert facts([*times("1", "2")[:-1], "inf"]).odd == 1


@pytest.mark.parametrize("size", [7, 64])
def test_pieces_change_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def all_facts() -> list[Facts]:
        cases = [facts(values) for _, values, _ in KINDS] + [facts(values, name) for _, name, values, _ in DROPPED]
        return cases + [facts(values, name) for _, name, values in KEPT]

    whole = all_facts()
    for module in (convert, looking):
        monkeypatch.setattr(module, "PIECE", size)
    assert all_facts() == whole


def test_a_kind_asked_for_wins() -> None:
    assert facts(times("1", "2"), asked="category").kind == "category"
    assert facts(times("1", "2"), asked="text").reason == "as asked"
    assert facts([str(at) for at in range(ROWS)], "id", "number").dropped is None
    assert facts(times("1", "x"), asked="skip").dropped == "left out as asked"
    assert facts(times("1", "x", "y"), asked="number").odd == ROWS * 2 // 3
    assert facts(times("2020-01-01", "x"), asked="skip").kind == "skip"
    with pytest.raises(UserError) as caught:
        facts(times("red", "blue"), "colour", "number")
    assert "colour" in str(caught.value) and "'red'" in str(caught.value) and caught.value.fix


def test_pictures_are_names_of_files_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics" / "1.PNG").write_bytes(b"")
    names = [f"pics/{at}.PNG" for at in range(1, ROWS + 1)]
    assert facts(names, folder=str(tmp_path)).kind == "image"
    assert facts([str(tmp_path / name) for name in names]).kind == "image"
    gone = facts(names, folder=str(tmp_path / "elsewhere"))
    assert gone.kind == "skip" and gone.dropped is not None and "none of which is there" in gone.dropped
    assert facts(times("a.png", "b.png"), folder=str(tmp_path)).kind == "category"  # seen again and again


# ---------------------------------------------------------------- cells as values


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**15), 10**15), st.none())))
def test_numbers_are_those_that_python_reads(values: list[float | None]) -> None:
    texts = ["" if value is None else repr(value) for value in values]
    expected = np.array([np.nan if value is None else float(value) for value in values], np.float64)
    np.testing.assert_array_equal(numbers(pa.array(texts, pa.string())), expected)
    np.testing.assert_array_equal(
        numbers(pa.array([f" {text} " for text in texts] + ["x"], pa.string()))[:-1], expected
    )


def test_numbers_of_typed_columns() -> None:
    assert numbers(pa.array([True, None, False]))[[0, 2]].tolist() == [1, 0]
    assert (
        numbers(pa.array([0.5, np.inf, None]))[0] == 0.5 and np.isnan(numbers(pa.array([0.5, np.inf, None]))[1:]).all()
    )
    assert numbers(pa.array([datetime.date(1970, 1, 3)])).tolist() == [2]
    assert numbers(pa.array(["5", "6"]).dictionary_encode()).tolist() == [5, 6]
    assert np.isnan(numbers(pa.array(["1,5", "0x10", "1_0", "٣", "inf", "1e999", *MISSING]))).all()
    assert len(numbers(pa.chunked_array([], pa.string()))) == 0


def test_strings_have_null_for_what_is_missing_and_nothing_else() -> None:
    column = pa.chunked_array([[*MISSING, " NA ", None], ["None", " kept ", "0"]])
    assert strings(column).to_pylist() == [None] * (len(MISSING) + 2) + ["None", " kept ", "0"]
    assert strings(pa.array([1, None])).to_pylist() == ["1", None]
    assert strings(pa.array([True])).to_pylist() == ["true"]
    assert strings(pa.array([["a", "b"], [], None])).to_pylist() == ["a b", None, None]


FORMATS = {
    "iso": "%Y-%m-%d",
    "y/m/d": "%Y/%m/%d",
    "d.m.y": "%d.%m.%Y",
    "d/m/y": "%d/%m/%Y",
    "m/d/y": "%m/%d/%Y",
}
MOMENTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)).map(
    lambda t: t.replace(microsecond=0)
)


@settings(max_examples=100, deadline=None)
@given(moments=st.lists(MOMENTS, min_size=1), form=st.sampled_from(sorted(FORMATS)), clock=st.booleans())
def test_days_are_those_that_were_written(moments: list[datetime.datetime], form: str, clock: bool) -> None:
    texts = [moment.strftime(FORMATS[form] + (" %H:%M:%S" if clock else "")) for moment in moments]
    expected = np.array([moment if clock else moment.date() for moment in moments], "datetime64[s]")
    np.testing.assert_array_equal(days(pa.array(texts), form), expected)
    other = {"d/m/y": "m/d/y", "m/d/y": "d/m/y"}.get(form)
    if other is None or (any(moment.day > 12 for moment in moments) and len(moments) < 50):
        assert date_form(pa.array(texts)) == form
    else:
        assert date_form(pa.array(texts)) in (None, form), "never the wrong way round"


def test_days_in_zones_and_days_that_no_calendar_has() -> None:
    column = pa.array(
        ["2024-01-31T10:00:00+01:00", "2024-01-31T10:00:00Z", "2024-01-31 10:00", "2024-2-30", "", "2024-02-29"]
    )
    assert [str(day) for day in days(column, "iso")] == [
        "2024-01-31T09:00:00", "2024-01-31T10:00:00", "2024-01-31T10:00:00", "NaT", "NaT", "2024-02-29T00:00:00",
    ]  # fmt: skip
    assert np.isnat(days(pa.array(["red", "blue"]))).all()
    assert str(days(pa.array([datetime.date(2024, 2, 29)]))[0]) == "2024-02-29T00:00:00"

"""Laws that every kind of column keeps, whoever wrote it: training rows and new rows are read alike, cell by cell."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anyformer.data.columns.base import Column, FileColumn
from anyformer.data.columns.kinds import Sentence, WordList, kind_named, kind_names, kinds
from anyformer.data.columns.look import look
from anyformer.data.columns.parsed import Parsed
from anyformer.data.frame import Frame
from anyformer.data.new_rows import parse_rows, parse_table
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Columns, Data
from anyformer.errors import UserError
from tests.data.columns import toy_column

WORDS = "the sun rose late over a quiet harbour while ships waited".split()
CELLS: dict[str, list[Any]] = {  # of each kind, none of them missing
    "number": ["1.5", "2", "-3.25", "1e3"] * 10,
    "category": ["red", "blue", "green", "red"] * 10,
    "date": ["2020-01-31", "2021-02-28", "2022-12-01", "2020-06-15"] * 10,
    "text": [" ".join(WORDS[at % 5 : at % 5 + 6]) + f" {at}" for at in range(40)],
    "sentence": [WORDS[at % 5 :] for at in range(40)],
    "words": [WORDS[at % 5 :] for at in range(40)],
    "place": ["48.2,16.4", "-33.9,151.2", "0.0,0.0", "10.5,-179.9"] * 10,
}
NONSENSE: dict[str, Any] = {  # what no cell of the kind is
    "number": "many", "category": {"a": 1}, "date": "yesterday", "text": {"a": 1}, "sentence": 7, "words": 7,
    "image": 7, "audio": 7, "place": "the moon",
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.kind)
written = pytest.mark.parametrize("kind", [kind for kind in kinds() if not issubclass(kind, FileColumn)],
                                  ids=lambda kind: kind.kind)  # fmt: skip


def fitted(kind: type[Column]) -> Column:
    """A column of the kind as training rows make it."""
    if issubclass(kind, FileColumn):
        return kind(name="x")
    frame = Frame(pa.table({"x": CELLS[kind.kind]}))
    return kind.fit("x", Parsed(frame).values(kind, "x", "iso"), Columns(), seed=1, form="iso")


def encoded(column: Column, cells: Any) -> np.ndarray | None:
    """Parsed cells as arrays, or None where a tokenizer makes them, or the modality all words together."""
    if isinstance(column, WordList):
        return None
    values = column.read_from(Parsed(Frame(pa.table({"x": cells}))))
    return None if values is None else column.encode(values)


def test_the_toy_is_among_them_and_names_are_one_each():
    names = [kind.kind for kind in kinds()]
    assert toy_column.Place in kinds() and len(set(names)) == len(names) and all(names)
    assert set(CELLS) | {"image", "audio"} == set(names) == set(NONSENSE)
    assert kind_named("number").kind == "number" and "sentence" not in kind_names() and "skip" in kind_names()
    with pytest.raises(UserError, match="'numbre' is not a kind of column; did you mean 'number'"):
        Data(types=("x=numbre",))


@every_kind
def test_what_was_fitted_is_saved_and_read_back(kind: type[Column]) -> None:
    made = Preprocess(task="classify", columns=(fitted(kind),))
    assert Preprocess.from_json(made.to_json()) == made
    assert made.modalities[0].name == kind.modality.name and made.modalities[0].columns == made.columns


@written
def test_a_column_is_recognised_or_taken_by_name(kind: type[Column]) -> None:
    frame = Frame(pa.table({"x": CELLS[kind.kind]}))
    found = look(frame, {})["x"].kind
    assert found == ("text" if issubclass(kind, Sentence) else kind.kind)  # words are a sentence where tags say so
    if kind.by_name:
        assert look(frame, {"x": kind.kind})["x"].reason == "as asked"


@written
def test_new_rows_are_read_as_training_rows_were(kind: type[Column]) -> None:
    column = fitted(kind)
    cells = CELLS[kind.kind]
    preprocess = Preprocess(task="classify", columns=(column,))
    trained = encoded(column, cells)
    table = parse_table(Frame(pa.table({"x": cells})), preprocess)
    rows = parse_rows([{"x": cell} for cell in cells], preprocess)
    assert not table.bad and not rows.bad
    if trained is not None:
        for new in (table, rows):
            assert np.array_equal(encoded(column, new.frame.column("x")), trained, equal_nan=True)
        assert len(np.unique(trained.reshape(len(trained), -1), axis=0)) > 1  # control: cells make a difference


@written
def test_no_cell_sees_its_neighbours(kind: type[Column]) -> None:
    column, cells = fitted(kind), CELLS[kind.kind][:4]

    def read(some: list[Any]) -> np.ndarray:
        parsed = parse_rows([{"x": cell} for cell in some], lone(column)).frame.column("x")
        found = encoded(column, parsed)
        return np.array(parsed.to_pylist(), object) if found is None else found

    assert not sees_neighbours(read, cells)
    assert sees_neighbours(lambda some: np.arange(len(some)) + len(some), cells)  # control: the rows beside it count


def sees_neighbours(read: Callable[[list[Any]], np.ndarray], cells: list[Any]) -> bool:
    """Whether a cell is read otherwise alone than among others."""
    whole = read(cells)
    return any(not same(read([cell])[0], whole[at]) for at, cell in enumerate(cells))


def same(one: Any, other: Any) -> bool:
    numeric = isinstance(one, np.ndarray | np.generic) and np.asarray(one).dtype != object
    return bool(np.array_equal(one, other, equal_nan=numeric))


def lone(column: Column) -> Preprocess:
    return Preprocess(task="classify", columns=(column,))


@every_kind
def test_the_example_is_taken_and_nonsense_is_refused_by_name(kind: type[Column]) -> None:
    column = fitted(kind)
    _, bad = column.parse_values([column.from_request(column.example()), None])
    assert bad == {}
    _, bad = column.parse_values([column.from_request(column.example()), NONSENSE[kind.kind]])
    assert set(bad) == {1} and bad[1].where == "x" and kind.noun.split()[1] in bad[1].line


@written
def test_a_missing_cell_is_missing_everywhere(kind: type[Column]) -> None:
    column = fitted(kind)
    cells, bad = column.parse_values([None, column.example()])
    assert not bad and cells.is_null().to_pylist() == [True, False]
    made = encoded(column, cells)
    if made is not None:
        assert column.lost(made).tolist() == [True, False]


def test_files_of_a_request_are_bytes_and_never_opened(tmp_path: Path) -> None:
    sink = io.BytesIO()
    with wave.open(sink, "wb") as file:
        file.setparams((1, 2, 1000, 0, "NONE", ""))
        file.writeframes(bytes(100))
    (tmp_path / "a.wav").write_bytes(sink.getvalue())
    for kind in kinds():
        if issubclass(kind, FileColumn):
            column = kind(name="x")
            assert isinstance(column.from_request(column.example()), bytes)
            with pytest.raises(UserError, match="is not a data URL"):
                column.from_request(str(tmp_path / "a.wav"))

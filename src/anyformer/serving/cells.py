"""One row of a request as the cells a trained model reads, checked column by column.

A cell is brought to its column's own kind here, by itself: where all rows were looked at together, a neighbour's odd
cell could change what a column is taken for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.cells import worded
from anyformer.data.columns import Category, Column, Date, Image, Number, Sentence, Sound, Text
from anyformer.data.conversions import days, numbers
from anyformer.data.preprocess import Preprocess
from anyformer.errors import UserError, did_you_mean
from anyformer.serving.data_urls import (
    PICTURES_SAID,
    SOUNDS_SAID,
    example_picture,
    example_sound,
    picture_bytes,
    sound_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa

MOST_WORDS = 4096  # of a sentence to be tagged
KINDS: dict[type[Column], str] = {
    Number: "a number", Category: "a text", Date: "a date", Text: "a text", Sentence: "a list of words",
    Image: f"an image as {PICTURES_SAID}", Sound: f"a recording as {SOUNDS_SAID}",
}  # fmt: skip


def kind_of(column: Column) -> str:
    """What a cell of a column is, in words."""
    return next(said for kind, said in KINDS.items() if isinstance(column, kind))


def row_cells(row: Any, preprocess: Preprocess) -> dict[str, Any]:
    """The cells of a row by column; a model of one column takes them bare too."""
    columns = {column.name: column for column in preprocess.columns or ()}
    answers = preprocess.target.names if preprocess.target else ()
    lone = next(iter(columns)) if len(columns) == 1 else None
    if lone is not None and not isinstance(row, Mapping):
        row = {lone: row}
    if not isinstance(row, Mapping):
        raise UserError(f"a row is {plain(row)}", fix=f"send an object with {listed(columns)}")
    for name in row:
        # The column that is predicted may stand in a row as it does in a file; it is not looked at.
        if name not in columns and name not in answers:
            raise UserError(f"there is no column {str(name)[:40]!r}", fix=did_you_mean(str(name)[:40], columns))
    lost = [name for name in columns if name not in row]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        fix = "send null where the value is not known" if lone is None else f"send {kind_of(columns[lone])}"
        raise UserError(f"the column {lost[0]!r}{more} is missing", fix=fix)
    if lone is not None and row[lone] is None:
        raise UserError("the row is empty", where=lone, fix=f"send {kind_of(columns[lone])}")
    return {name: cell(row[name], column) for name, column in columns.items()}


def cell(value: Any, column: Column) -> Any:
    """One value as its column holds it; None is a value that is not known."""
    wrong = UserError(f"{plain(value)} is not {kind_of(column)}", where=column.name, fix=f"send {kind_of(column)}")
    if isinstance(column, Image):
        return None if value is None else picture_bytes(value, column.name)
    if isinstance(column, Sound):
        return None if value is None else sound_bytes(value, column.name)
    if isinstance(column, Sentence):
        words = value.split() if isinstance(value, str) else value
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise wrong
        if len(words) > MOST_WORDS:
            raise UserError(f"{len(words):,} words are too many", where=column.name, fix=f"send {MOST_WORDS:,}")
        return [spelled(word, column.name) for word in words]
    if value is None:
        return None
    if isinstance(value, str):
        spelled(value, column.name)
    if isinstance(value, list | Mapping) or (isinstance(value, bool) and not isinstance(column, Category)):
        raise wrong
    if isinstance(column, Number):
        return number(value, wrong)
    if isinstance(column, Date):
        if not isinstance(value, str) or (value.strip() and not is_date(value, column.form)):
            raise UserError(f"{plain(value)} is not a date as the model was trained on", where=column.name,
                            fix=f"write it as {SHAPES.get(column.form, '2026-01-31')}")  # fmt: skip
        return value
    if isinstance(column, Text) and not isinstance(value, str):
        raise wrong
    return value if isinstance(value, str) else word(value)


def spelled(text: str, where: str = "") -> str:
    """A text that can be written down: half a pair of surrogates, which JSON can say, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"character {error.start + 1} is half of a pair", where=where, fix="send whole text") from None
    return text


SHAPES = {
    "iso": "2026-01-31", "y/m/d": "2026/01/31", "d.m.y": "31.01.2026", "d/m/y": "31/01/2026", "m/d/y": "01/31/2026",
}  # fmt: skip


def is_date(text: str, form: str) -> bool:
    """Whether a text is a day that the calendar has, written in the column's form."""
    return not np.isnat(days(words_column([text]), form or "iso")[0])


def number(value: Any, wrong: UserError) -> float | None:
    """A number, also one that is written as text as a CSV file has it; None for a text that stands for no value."""
    if isinstance(value, str):
        from anyformer.data.conversions import MISSING

        if value.strip() in MISSING:
            return None
        value = float(numbers(words_column([value]))[0])
    try:
        found = float(value)
    except OverflowError:
        raise wrong from None
    if not math.isfinite(found):
        raise wrong
    return found


def word(value: float | bool) -> str | None:
    """A number or truth as a category's name, written as training wrote it."""
    import pyarrow as pa

    return worded(pa.chunked_array([pa.array([value])]))[0].as_py()


def words_column(values: Sequence[str | None]) -> pa.ChunkedArray:
    import pyarrow as pa

    return pa.chunked_array([pa.array(list(values), pa.string())])


def frame_table(rows: Sequence[Mapping[str, Any]], preprocess: Preprocess) -> pa.Table:
    """Rows of cells as a table whose columns have the kinds that training gave them."""
    import pyarrow as pa

    made = {}
    for column in preprocess.columns or ():
        kind = pa.string()
        if isinstance(column, Number):
            kind = pa.float64()
        elif isinstance(column, Image):
            kind = pa.binary()
        elif isinstance(column, Sentence):
            kind = pa.list_(pa.string())
        made[column.name] = pa.array([row[column.name] for row in rows], kind)
    return pa.table(made)


def example_cell(column: Column) -> Any:
    """A value that a column takes."""
    if isinstance(column, Number):
        return round(column.mean, 3)
    if isinstance(column, Category):
        return (column.values or ("x",))[0]
    if isinstance(column, Date):
        return SHAPES.get(column.form, SHAPES["iso"])
    if isinstance(column, Image):
        return example_picture()
    if isinstance(column, Sound):
        return example_sound(column.rate or 16_000)
    return ["Once", "upon", "a", "time"] if isinstance(column, Sentence) else "Hello"


def plain(value: Any) -> str:
    """A value in a message, short."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "null" if value is None else repr(value)[:40]


def listed(columns: Mapping[str, Column], most: int = 8) -> str:
    """The columns a row has, with what each of them is."""
    said = [f"{name} ({kind_of(column)})" for name, column in list(columns.items())[:most]]
    return ", ".join(said) + (f" and {len(columns) - most} more" if len(columns) > most else "")

"""One row of a request: what a client may send is less than what a person at home may, and is bounded.

Images and recordings come as data URLs and leave here as bytes: no name of a file that a client sends is ever opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.data import new_rows
from anyformer.data.columns.fitted import Category, Column, Date, Image, Number, Sentence, Sound
from anyformer.data.new_rows import DATES, named_cells
from anyformer.data.preprocess import Preprocess
from anyformer.errors import UserError
from anyformer.serving.data_urls import (
    PICTURES_SAID,
    SOUNDS_SAID,
    example_picture,
    example_sound,
    picture_bytes,
    sound_bytes,
)

MOST_WORDS = 4096  # of a sentence to be tagged


def kind_of(column: Column) -> str:
    """What a cell of a column is in a request, in words."""
    how = {Image: f" as {PICTURES_SAID}", Sound: f" as {SOUNDS_SAID}"}
    return new_rows.kind_of(column) + how.get(type(column), "")


def listed(columns: Mapping[str, Column], most: int = 8) -> str:
    """The columns a row has, with what each of them is."""
    said = [f"{name} ({kind_of(column)})" for name, column in list(columns.items())[:most]]
    return ", ".join(said) + (f" and {len(columns) - most} more" if len(columns) > most else "")


def row_cells(row: Any, preprocess: Preprocess) -> dict[str, Any]:
    """The cells of a row by column, files unpacked and bounds checked; the rest is for `parse_rows`."""
    cells = dict(named_cells(row, preprocess, extra=False))
    for column in preprocess.columns or ():
        value = cells[column.name]
        if value is None:
            continue
        if isinstance(column, Image):
            cells[column.name] = picture_bytes(value, column.name)
        elif isinstance(column, Sound):
            cells[column.name] = sound_bytes(value, column.name)
        elif isinstance(column, Sentence):
            words = len(value.split()) if isinstance(value, str) else len(value) if isinstance(value, list) else 0
            if words > MOST_WORDS:
                raise UserError(f"{words:,} words are too many", where=column.name, fix=f"send {MOST_WORDS:,}")
    return cells


def example_cell(column: Column) -> Any:
    """A value that a column takes."""
    if isinstance(column, Number):
        return round(column.mean, 3)
    if isinstance(column, Category):
        return (column.values or ("x",))[0]
    if isinstance(column, Date):
        return DATES.get(column.form, DATES["iso"])
    if isinstance(column, Image):
        return example_picture()
    if isinstance(column, Sound):
        return example_sound(column.rate or 16_000)
    return ["Once", "upon", "a", "time"] if isinstance(column, Sentence) else "Hello"

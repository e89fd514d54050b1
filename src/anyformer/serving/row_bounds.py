"""One row of a request: what a client may send is less than what a person at home may, and is bounded.

Images and recordings come as data URLs and leave here as bytes: no name of a file that a client sends is ever opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.data.columns.base import Column
from anyformer.data.new_rows import named_cells
from anyformer.data.preprocess import Preprocess


def listed(columns: Mapping[str, Column], most: int = 8) -> str:
    """The columns a row has, with what each of them is."""
    said = [f"{name} ({column.request_noun})" for name, column in list(columns.items())[:most]]
    return ", ".join(said) + (f" and {len(columns) - most} more" if len(columns) > most else "")


def row_cells(row: Any, preprocess: Preprocess) -> dict[str, Any]:
    """The cells of a row by column, files unpacked and bounds checked; the rest is for `parse_rows`."""
    cells = dict(named_cells(row, preprocess, extra=False))
    for column in preprocess.columns or ():
        value = cells[column.name]
        cells[column.name] = None if value is None else column.from_request(value)
    return cells

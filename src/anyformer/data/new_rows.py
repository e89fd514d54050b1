"""New rows for a trained model: each cell is parsed by its column's kind, or gives an error that names it.

The command line, Python, the estimators and the server all read their rows here, so that a row has the same prediction
everywhere. Nothing in a row depends on other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from anyformer.data.columns.base import Column
from anyformer.data.columns.values import shown
from anyformer.data.frame import Frame, Source
from anyformer.data.preprocess import Preprocess
from anyformer.errors import UserError, did_you_mean


@dataclass
class NewRows:
    """Rows parsed by the kinds of their columns; a bad row has empty cells, and an error that names a column."""

    frame: Frame
    bad: dict[int, UserError] = field(default_factory=dict)


def list_columns(columns: Iterable[Column], most: int = 8) -> str:
    """The columns of a row with their kinds, for messages."""
    said = [f"{column.name} ({column.noun})" for column in columns]
    return ", ".join(said[:most]) + (f" and {len(said) - most} more" if len(said) > most else "")


# ---------------------------------------------------------------- rows


def parse_table(frame: Frame, preprocess: Preprocess) -> NewRows:
    """Parse a table with all input columns of the model, and its target columns if present."""
    import pyarrow as pa

    made, bad = {}, dict[int, UserError]()
    for column in preprocess.columns or ():
        cells = frame.column(column.name)
        if pa.types.is_dictionary(cells.type):
            cells = cells.cast(cells.type.value_type)
        made[column.name], wrong = column.parse_cells(cells, known=preprocess.unknown == "error")
        bad = wrong | bad  # the first column's error is reported
    refuse_nothing(made, preprocess, bad)
    targets = preprocess.target.names if preprocess.target else ()
    made |= {name: frame.column(name) for name in targets if name in frame.names and name not in made}
    return NewRows(replace(frame, table=pa.table(made)), bad)


def parse_rows(rows: Sequence[Any], preprocess: Preprocess, *, extra: bool = True) -> NewRows:
    """Parse rows in Python or JSON: objects by column, lists in the order of the columns, or single cells.

    `extra` allows fields unknown to the model.
    """
    import pyarrow as pa

    columns = preprocess.columns or ()
    found: list[Mapping[str, Any]] = []
    bad: dict[int, UserError] = {}
    for at, row in enumerate(rows):
        try:
            found.append(named_cells(row, preprocess, extra=extra))
        except UserError as error:
            bad[at] = error
            found.append({})
    made = {}
    for column in columns:
        cells = [row.get(column.name) for row in found]
        made[column.name], wrong = column.parse_values(cells, known=preprocess.unknown == "error")
        bad = wrong | bad
    refuse_nothing(made, preprocess, bad)
    return NewRows(Frame(pa.table(made), (Source("rows", rows=len(rows)),)), bad)


def named_cells(row: Any, preprocess: Preprocess, *, extra: bool = True) -> Mapping[str, Any]:
    """The cells of one row by column; a model with one column also takes a bare cell."""
    columns = {column.name: column for column in preprocess.columns or ()}
    lone = next(iter(columns)) if len(columns) == 1 else None
    if isinstance(row, list | tuple | np.ndarray) and lone is None and len(row) == len(columns):
        row = dict(zip(columns, row, strict=True))
    if not isinstance(row, Mapping):
        if lone is None:
            raise UserError(f"a row is {shown(row)}", fix=f"give an object with {list_columns(columns.values())}")
        row = {lone: row}
    answers = preprocess.target.names if preprocess.target else ()
    for name in row if not extra else ():
        # The target column may be in a row as in a file; it is ignored.
        if name not in columns and name not in answers:
            raise UserError(f"unknown column {str(name)[:40]!r}", fix=did_you_mean(str(name)[:40], columns))
    lost = [name for name in columns if name not in row]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        near = did_you_mean(lost[0], [str(name) for name in row if name not in columns] or columns)
        none = f"give {columns[lost[0]].noun}" if lone is not None else "give null (None) where it is not known"
        raise UserError(f"the column {lost[0]!r}{more} is missing", fix=near if "did you mean" in near else none)
    return row


def refuse_nothing(made: Mapping[str, Any], preprocess: Preprocess, bad: dict[int, UserError]) -> None:
    """Reject an empty row of a model whose only input is required, such as an image or audio file."""
    columns = preprocess.columns or ()
    if len(columns) != 1 or not columns[0].needed:
        return
    (column,) = columns
    for row in np.flatnonzero(made[column.name].is_null().to_numpy(zero_copy_only=False)).tolist():
        bad.setdefault(row, UserError("the row is empty", where=column.name, fix=f"give {column.noun}"))


def with_place(error: UserError, frame: Frame, row: int) -> UserError:
    """The error of a row with its location: `rows[3].size`, or `cars.csv row 7, size` in a file."""
    if frame.sources and frame.sources[0].path:
        where = frame.place(row) + (f", {error.where}" if error.where else "")
        return UserError(error.what, where=where, fix=error.fix)
    return error.inside(f"rows[{row}]")

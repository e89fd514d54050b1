"""Rows for prediction in any form: paths, tables, arrays, lists; and the handling of unreadable ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyformer.data.columns.cells import some
from anyformer.data.files.tables import frame_of
from anyformer.data.frame import Frame
from anyformer.data.preprocess import Preprocess
from anyformer.errors import UserError
from anyformer.log import Log
from anyformer.safe_files import scratch_folder

OnBadRows = Literal["error", "skip"]
ON_BAD_ROWS = ("error", "skip")
TOLD = 5  # bad rows reported individually


def given_rows(source: Any, preprocess: Preprocess, *, with_truth: bool = False) -> list[Any] | Frame:
    """The given rows as paths, as a table, or as a list. A single object by column is one row."""
    columns = preprocess.columns or ()
    rows = take_rows(source)
    if is_files(rows):
        assert isinstance(rows, list)
        answers = set(preprocess.target.names if preprocess.target else ()) - {column.name for column in columns}
        lone = columns[0] if len(columns) == 1 and not (with_truth and answers) else None
        # Unlabelled images or audio: files, or a folder of them.
        inside = None if lone is None else lone.files_in(rows)
        return rows if inside is None or lone is None else frame_of({lone.name: inside})
    if isinstance(rows, np.ndarray):
        if rows.ndim == 2 and len(columns) == rows.shape[1] > 1:
            return frame_of({column.name: rows[:, at] for at, column in enumerate(columns)})
        rows = list(rows) if rows.ndim else []
    if isinstance(rows, Mapping):
        rows = by_row(rows)
    if not len(rows):
        raise UserError("no rows given", where="rows", fix="give at least one")
    return rows


def take_rows(source: Any) -> Any:
    """A list of paths, a table, an array, columns by name, or a list of rows."""
    owner, kind = type(source).__module__.partition(".")[0], type(source).__name__
    if isinstance(source, Path) or (isinstance(source, str) and names_path(source)):
        return [Path(source)]
    if isinstance(source, str | bytes):
        raise UserError(f"rows are given as {kind} {source[:30]!r}, and it is not a file", where="rows",
                        fix="give a list of rows: [row]")  # fmt: skip
    if isinstance(source, Frame | np.ndarray | Mapping):
        return source
    if owner == "torch":
        return source.numpy(force=True)
    if owner in ("pandas", "polars", "pyarrow"):
        series = kind in ("Series", "ChunkedArray") or kind.endswith("Array")
        return source.tolist() if series and owner == "pandas" else list(source) if series else frame_of(source)
    if isinstance(source, Iterable):
        return list(source)
    raise UserError(f"rows are given as {kind}", where="rows", fix="give a list of rows, a table or a path")


def names_path(text: str) -> bool:
    """Whether a string is an existing path."""
    try:
        return os.path.exists(text)
    except ValueError:
        return False


def is_files(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, Path) for row in rows)


def by_row(columns: Mapping[Any, Any]) -> list[Any] | Frame:
    """Columns by name as a table; an object whose values are not lists is one row."""
    if not any(is_column(cells) for cells in columns.values()):
        return [columns]
    plain = all(isinstance(cells, list | tuple) for cells in columns.values())
    if not plain or len({len(cells) for cells in columns.values()}) > 1:
        return frame_of(columns)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def is_column(cells: Any) -> bool:
    """Whether a value is a column of cells."""
    if type(cells).__module__.partition(".")[0] in ("pandas", "polars", "pyarrow"):
        return True
    return isinstance(cells, Sequence | np.ndarray) and not isinstance(cells, str | bytes)


# ---------------------------------------------------------------- rows that cannot be read


def report_bad(bad: Mapping[int, UserError], on_bad_rows: OnBadRows, log: Log) -> None:
    """Raise the error of the first unreadable row, or log which rows are skipped."""
    if not bad:
        return
    first = next(iter(bad.values()))
    if on_bad_rows == "error":
        more = [f"{some(len(bad), 'row')} cannot be read: {ranges(list(bad))[:200]}"] if len(bad) > 1 else []
        raise UserError(first.what, where=first.where, fix=first.fix, details=more)
    log(f"skipped  {some(len(bad), 'row')} that cannot be read")
    for error in list(bad.values())[:TOLD]:
        log(f"skipped  {error.line}")
    if len(bad) > TOLD:
        log(f"skipped  and {len(bad) - TOLD:,} more: rows {ranges(list(bad)[TOLD:])}")


def ranges(rows: Sequence[int]) -> str:
    """Ranges of row numbers counted from 1.

    >>> ranges([0, 1, 2, 6])
    '1-3, 7'
    """
    parts: list[list[int]] = []
    for row in rows:
        if parts and parts[-1][1] == row:
            parts[-1][1] = row + 1
        else:
            parts.append([row + 1, row + 1])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


@contextmanager
def room_for(files: bool) -> Iterator[Path | None]:
    """A temporary folder for data read from files, which may exceed memory; None for data already in memory."""
    if not files:
        yield None
        return
    with scratch_folder() as folder:
        yield folder

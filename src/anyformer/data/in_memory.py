"""Python data as a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.columns.arrow import column_of, plain_table, plain_types
from anyformer.data.files.json_rows import batch_of, flat
from anyformer.data.files.open_text import import_pyarrow
from anyformer.data.frame import Frame, Source
from anyformer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa


def frame_of(data: Any) -> Frame:
    """Python data as a frame: a pyarrow or pandas table, columns by name, rows, texts or an array."""
    if isinstance(data, Frame):
        return data
    import_pyarrow("rows")
    import pyarrow as pa

    owner = type(data).__module__.partition(".")[0]
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        table = plain_table(data)
    elif owner == "pandas":
        table = of_pandas(data)
    elif owner == "polars":
        table = plain_table(data.to_arrow())
    elif isinstance(data, Mapping):
        table = of_columns(data)
    elif isinstance(data, np.ndarray):
        table = of_array(data)
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        table = of_rows(data)
    else:
        what = f"{type(data).__name__} is not data"
        raise UserError(what, where="data", fix="give a file, a table, a dict of columns or a list of rows")
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"the column name {twice[0][:40]!r} comes twice", where="data", fix="rename one of them")
    if not table.num_rows or not names:
        raise UserError("no rows", where="data", fix="give at least one row")
    return Frame(table, (Source("rows", rows=table.num_rows),))


def of_pandas(data: Any) -> pa.Table:
    """A DataFrame or Series, without its index."""
    import pyarrow as pa

    if type(data).__name__ == "Series":
        data = data.to_frame(name="text" if data.name is None else str(data.name))
    columns = {}
    for at, name in enumerate(data.columns):
        if str(name) in columns:
            raise UserError(f"the column name {str(name)[:40]!r} comes twice", where="data", fix="rename one of them")
        values = data.iloc[:, at]
        try:
            columns[str(name)] = plain_types(pa.Array.from_pandas(values))
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            columns[str(name)] = column_of(values.tolist())
    return plain_table(pa.table(columns))


def of_columns(data: Mapping[Any, Any]) -> pa.Table:
    """Columns by name."""
    import pyarrow as pa

    columns = {}
    for name, values in data.items():
        if isinstance(values, pa.Array | pa.ChunkedArray):
            columns[str(name)] = plain_types(values)
            continue
        if type(values).__module__.partition(".")[0] == "pandas":
            values = values.tolist()
        if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
            raise UserError(
                f"the column {str(name)[:40]!r} is not a list", where="data", fix="give a list of its cells"
            )
        if isinstance(values, np.ndarray) and values.ndim != 1:
            raise UserError(f"the column {str(name)[:40]!r} has {values.ndim} axes", where="data", fix="give one axis")
        columns[str(name)] = column_of(values)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name[:30]} {count}" for name, count in list(lengths.items())[:4])
        raise UserError(f"columns of different lengths ({shown})", where="data", fix="make them equally long")
    return pa.table(columns)


def of_array(data: np.ndarray) -> pa.Table:
    """An array of one or two axes; its columns are c1, c2, ..."""
    import pyarrow as pa

    if data.ndim == 1:
        return pa.table({"text" if data.dtype.kind in "SUO" else "c1": column_of(data)})
    if data.ndim != 2:
        raise UserError(f"an array of {data.ndim} axes", where="data", fix="give rows and columns: two axes")
    return pa.table({f"c{at + 1}": column_of(data[:, at]) for at in range(data.shape[1])})


def of_rows(data: Sequence[Any]) -> pa.Table:
    """A list of objects, of texts, or of equally long rows."""
    import pyarrow as pa

    rows = list(data)
    odd = next((at for at, row in enumerate(rows) if type(row) is not type(rows[0])), None)
    if odd is not None and not all(isinstance(row, Mapping) for row in rows):
        what = f"rows of different kinds: {type(rows[0]).__name__}, then {type(rows[odd]).__name__}"
        raise UserError(what, where=f"data row {odd + 1}", fix="give all rows in one form")
    if rows and isinstance(rows[0], Mapping):
        return pa.Table.from_batches([batch_of([flat({str(k): v for k, v in row.items()}) for row in rows])])
    if rows and isinstance(rows[0], str):
        return pa.table({"text": pa.array(rows, pa.string())})
    if rows and isinstance(rows[0], list | tuple | np.ndarray):
        width = len(rows[0])
        odd = next((at for at, row in enumerate(rows) if len(row) != width), None)
        if odd is not None:
            raise UserError(f"{len(rows[odd])} values where {width} are expected", where=f"data row {odd + 1}",
                            fix="make all rows equally long")  # fmt: skip
        return pa.table({f"c{at + 1}": column_of([row[at] for row in rows]) for at in range(width)})
    if not rows:
        raise UserError("no rows", where="data", fix="give at least one row")
    raise UserError(f"rows of {type(rows[0]).__name__}", where="data", fix="give dicts, texts or lists")

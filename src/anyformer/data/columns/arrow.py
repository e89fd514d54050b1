"""Arrow columns from plain values, and conversions between types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


YEAR_1, YEAR_9999 = -62_135_596_800, 253_402_300_799  # first and last second of the calendar, from 1970
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type that holds values of both; string holds any value."""
    import pyarrow as pa
    from pyarrow import types

    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if all(types.is_integer(t) for t in (one, other)):
        return pa.int64()
    if all(types.is_integer(t) or types.is_floating(t) for t in (one, other)):
        return pa.float64()
    if all(types.is_list(t) or types.is_large_list(t) for t in (one, other)):
        return pa.list_(common_type(one.value_type, other.value_type))
    if all(types.is_timestamp(t) or types.is_date(t) for t in (one, other)):
        return pa.timestamp("us")
    return pa.string()


def as_type(column: Any, kind: pa.DataType) -> Any:
    """A column cast to another type; values that cannot be cast are cast from text."""
    import pyarrow as pa

    if column.type == kind:
        return column
    try:
        return column.cast(kind, safe=not pa.types.is_floating(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return pa.array([text_of(value) for value in column.to_pylist()], pa.string()).cast(kind)


def text_of(value: Any) -> str | None:
    """A value as text: strings unchanged, whole numbers without a decimal point, anything else as JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))  # as a column of numbers is written
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def column_of(values: Sequence[Any] | np.ndarray) -> pa.Array:
    """A column of plain values: integers, floats, booleans, strings or lists of these; a mixture becomes strings."""
    import pyarrow as pa

    if isinstance(values, np.ndarray) and values.dtype != object:
        if values.dtype.kind in "SU":
            return pa.array(values.astype(str).tolist(), pa.string())
        if values.dtype == np.float16:
            values = values.astype(np.float32)
        return pa.array(np.ascontiguousarray(values))
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    types = {type(value) for value in plain} - {type(None)}
    if types <= {int, float} and types:
        whole = float not in types and all(value is None or -(2**63) <= value < 2**63 for value in plain)
        try:
            return pa.array(plain, pa.int64()) if whole else pa.array(map(as_float, plain), pa.float64())
        except (pa.ArrowInvalid, OverflowError):
            return pa.array([text_of(value) for value in plain], pa.string())
    if len(types) <= 1 and not types & {dict}:
        try:
            return plain_types(pa.array(plain))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError):
            pass
    return pa.array([text_of(value) for value in plain], pa.string())


def as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def plain_types(column: Any) -> Any:
    """A column without dictionary encoding and equivalent types: strings, numbers, booleans, timestamps, lists."""
    import pyarrow as pa
    from pyarrow import types

    kind = column.type
    if isinstance(kind, pa.ExtensionType):
        storage = [chunk.storage for chunk in column.chunks] if isinstance(column, pa.ChunkedArray) else None
        column = column.storage if storage is None else pa.chunked_array(storage, kind.storage_type)
        return plain_types(column)
    if types.is_dictionary(kind):
        return plain_types(column.cast(kind.value_type))
    if types.is_large_string(kind) or types.is_string_view(kind):
        return column.cast(pa.string()) if column.nbytes < 2**30 else column
    if types.is_timestamp(kind) or types.is_date(kind):
        return within_calendar(column)
    if types.is_decimal(kind) or types.is_float16(kind):
        return column.cast(pa.float64())
    holds = (
        kind.value_type if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) else None
    )
    if types.is_map(kind) or types.is_union(kind) or (holds is not None and types.is_nested(holds)):
        return pa.array([text_of(value) for value in column.to_pylist()], pa.string())
    if holds is not None and not types.is_list(kind):
        return column.cast(pa.list_(holds))
    return column


def within_calendar(column: Any) -> Any:
    """Timestamps with those outside the years 1 to 9999 as missing: Python cannot represent them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_date32(column.type):
        counts, second = column.cast(pa.int32()), 1 / 86400
    else:
        counts = column.cast(pa.int64())
        second = UNITS["ms" if pa.types.is_date64(column.type) else column.type.unit]
    low, high = (max(-(2**63), min(2**63 - 1, int(edge * second))) for edge in (YEAR_1, YEAR_9999))
    named = pc.and_(pc.greater_equal(counts, low), pc.less_equal(counts, high))
    return pc.if_else(named, column, pa.scalar(None, column.type))


def plain_table(table: pa.Table) -> pa.Table:
    """A table with structs flattened, and every column of a plain type."""
    import pyarrow as pa

    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    columns = [plain_types(column) for column in table.columns]
    return pa.table(columns, names=table.column_names)

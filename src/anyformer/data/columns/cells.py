"""Cells of a column as words: integer codes, missing cells apart, names in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.columns.convert import strings

if TYPE_CHECKING:
    import pyarrow as pa

ENORMOUS = 1e150  # largest number in computations
LARGEST = 1e30  # largest number in an array; a float32 holds it
BETWEEN = "\x1f"  # separates the items of a list that is compared as one word


def as_words(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column as strings, null if a cell is missing; whole numbers without a decimal point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if is_list(kind):
        return pc.binary_join(column.cast(pa.list_(pa.string())), BETWEEN)
    if pa.types.is_float16(kind):  # Arrow cannot round it
        column, kind = column.cast(pa.float32()), pa.float32()
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
        # Per cell: whether its neighbours are whole does not change how it is written.
        whole = pc.and_(pc.equal(column, pc.round(column)), pc.less(pc.abs(column), float(2**53)))
        integers = pc.if_else(whole, column, pa.scalar(None, kind)).cast(pa.int64())
        return pc.if_else(whole, integers.cast(pa.string()), column.cast(pa.string()))
    return strings(column)


def is_list(kind: Any) -> bool:
    """Whether an Arrow type is a list."""
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def factorize(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """The code of every cell, -1 if missing, and the words in order of first occurrence."""
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = pc.utf8_trim_whitespace(as_words(column)).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, encoded.dictionary.to_pylist()


def texts(column: pa.ChunkedArray) -> list[str]:
    """Every cell as text, empty if missing; the words of a list joined by spaces."""
    found = strings(column) if is_list(column.type) else as_words(column)
    return ["" if text is None else text for text in found.to_pylist()]


def clip_numbers(values: np.ndarray) -> np.ndarray:
    """Numbers as float64, nan if not finite, clipped so that their squares are finite."""
    return np.clip(np.where(np.isfinite(values), values, np.nan).astype(np.float64), -ENORMOUS, ENORMOUS)


def some(count: int, noun: str) -> str:
    """A number with its noun.

    >>> some(1, "row"), some(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names sorted: by value if all are numbers, else as text."""
    known = sorted(set(names))
    values = [number_of(name) for name in known]
    if all(value is not None for value in values):
        return tuple(name for _, name in sorted(zip(values, known, strict=True)))
    return tuple(known)


def number_of(word: str) -> float | None:
    """The finite number that a word spells, or None."""
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None

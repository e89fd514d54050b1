"""Cells as numbers, words and timestamps, from text or from typed columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

# Words for a missing value; surrounding spaces do not matter.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NAN", "NULL", "null", "Null", "?", "-")
# Words for a missing number or date, in lower case; in other columns they may be values.
NONES = (
    "none", "unknown", "unk", "missing", "nil", "na", "n.a.", "n.a", "nan", "null", "not available", "not applicable",
    "*", "**", ".", "..", "...", "--", "---", "#div/0!", "#value!", "#ref!",
)  # fmt: skip
NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
PIECE = 2**17  # rows processed at once

CLOCK = r"(?P<h>\d{1,2})(?::(?P<n>\d{2})(?::(?P<s>\d{2})(?:[.,]\d+)?)?)?(?:\s?(?P<p>[AaPp])\.?[Mm]\.?)?"
TIME = r"(?:[T ]" + CLOCK + r"\s?(?P<z>Z|UTC|[+-]\d{2}(?::?\d{2})?)?)?$"
DAY_FORMS = {  # formats of dates in digits, and the patterns that read them
    "iso": r"^(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})" + TIME,
    "y/m/d": r"^(?P<y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})" + TIME,
    "d.m.y": r"^(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})" + TIME,
    "d/m/y": r"^(?P<d>\d{1,2})[/-](?P<m>\d{1,2})[/-](?P<y>\d{4})" + TIME,
    "m/d/y": r"^(?P<m>\d{1,2})[/-](?P<d>\d{1,2})[/-](?P<y>\d{4})" + TIME,
}
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = r"(?P<b>(?i:" + "|".join(MONTHS) + r"))[a-z]{0,6}\.?"
YEAR = r"(?P<y>\d{4}|\d{2})"
FORMS = DAY_FORMS | {
    "y-m": r"^(?P<y>\d{4})(?:[-/]|\s?M)(?P<m>\d{1,2})$",
    "ymd": r"^(?P<y>(?:19|20)\d{2})(?P<m>\d{2})(?P<d>\d{2})$",
    "y quarter": r"^(?P<y>\d{4})[-\s]?[Qq](?P<q>[1-4])$",
    "y month": r"^(?P<y>\d{4})[-/\s]+" + MONTH + "$",
    "month y": "^" + MONTH + r"[-/\s,']+" + YEAR + "$",
    "d month y": r"^(?P<d>\d{1,2})[-/\s.]+" + MONTH + r"[-/\s,]+" + YEAR + TIME,
    "month d y": "^" + MONTH + r"[-/\s]+(?P<d>\d{1,2})(?:st|nd|rd|th)?[-/\s,]+(?P<y>\d{4})" + TIME,
}
CENTURY = 30  # two-digit years below are in this century, as in spreadsheets


def numbers(column: Any) -> np.ndarray:
    """The cells as float64, nan if missing, not a number or not finite."""
    parts = [numbers_of(piece) for piece in pieces(column)]
    return np.concatenate(parts) if parts else np.zeros(0)


def strings(column: Any) -> pa.ChunkedArray:
    """The cells as text, null if missing; a list of words is joined by spaces."""
    import pyarrow as pa

    return pa.chunked_array([words_of(piece) for piece in pieces(column)], pa.string())


def days(column: Any, form: str | None = None) -> np.ndarray:
    """The cells as datetime64[s], NaT if not a date. `form` is their format: see `date_form`."""
    form = form or date_form(column)
    parts = [moments_of(piece, form) for piece in pieces(column)]
    return np.concatenate(parts) if parts else np.zeros(0, "datetime64[s]")


def pieces(column: Any) -> Iterator[Any]:
    """A column as arrays of at most `PIECE` rows, to limit memory."""
    import pyarrow as pa

    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if pa.types.is_dictionary(chunk.type):
            chunk = chunk.cast(chunk.type.value_type)
        for start in range(0, len(chunk), PIECE):
            yield chunk.slice(start, PIECE)


def is_words(kind: pa.DataType) -> bool:
    """Whether cells of a type are text."""
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def clean_words(piece: pa.Array) -> pa.Array:
    """Stripped texts, null if they stand for a missing value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(piece)
    return pc.if_else(pc.is_in(trimmed, value_set=pa.array(MISSING, piece.type)), pa.scalar(None, piece.type), trimmed)


def stands_for_none(words: pa.Array) -> pa.Array:
    """Mask of cleaned texts that mean a missing number or date, rather than an error."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(pc.utf8_lower(words), value_set=pa.array(NONES, words.type))


def numbers_of(piece: pa.Array) -> np.ndarray:
    """One piece as float64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = piece.type
    if is_words(kind):
        return numbers_in(clean_words(piece))
    if pa.types.is_boolean(kind):
        piece = piece.cast(pa.int8())
    elif pa.types.is_temporal(kind):
        seconds = moments_of(piece, None)
        found = seconds.astype(np.int64) / 86400
        return np.where(np.isnat(seconds), np.nan, found)
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return np.full(len(piece), np.nan)
    values = pc.cast(piece, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(values), values, np.nan)


def numbers_in(words: pa.Array) -> np.ndarray:
    """Cleaned texts as float64."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        found = words.cast(pa.float64())
    except pa.ArrowInvalid:
        fits = pc.match_substring_regex(words, NUMBER)
        found = pc.if_else(fits, words, pa.scalar(None, words.type)).cast(pa.float64())
    values = found.to_numpy(zero_copy_only=False)
    return np.where(np.isfinite(values), values, np.nan)


def words_of(piece: pa.Array) -> pa.Array:
    """One piece as text; what the file wrote stays as written."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = piece.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        joined = pc.binary_join(piece.cast(pa.list_(pa.string())), " ")
        return pc.if_else(pc.equal(joined, ""), pa.scalar(None, pa.string()), joined)
    if is_words(kind):
        piece = piece.cast(pa.string())
        return pc.if_else(pc.is_valid(clean_words(piece)), piece, pa.scalar(None, pa.string()))
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(piece), piece, pa.scalar(None, kind)).cast(pa.string())
    try:
        return piece.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # bytes that are not text
        return pa.nulls(len(piece), pa.string())


def date_form(column: Any) -> str | None:
    """The date format of a text column, a key of `FORMS`; None if there is none or it is ambiguous."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not is_words(column.type):
        return "iso" if pa.types.is_temporal(column.type) else None
    possible = dict.fromkeys(FORMS, 0)
    known = 0
    for piece in pieces(column):
        words = pc.unique(clean_words(piece)).drop_null()
        words = words.filter(pc.invert(stands_for_none(words)))
        known += len(words)
        for form in list(possible):
            good = int(np.count_nonzero(~np.isnat(moments_in(words, form))))
            possible[form] += good
            if known - possible[form] > allowed_misfits(known):
                del possible[form]
        if not possible:
            return None
    best = [form for form, good in possible.items() if known and good == max(possible.values())]
    return best[0] if len(best) == 1 else None


def is_date_in_digits(column: Any) -> bool:
    """Whether a text column holds dates written as 20260131, each of which could be read as a number."""
    if not is_words(column.type):
        return False
    first = column.slice(0, 100)
    return date_form(first) == "ymd" and date_form(column) == "ymd"


def allowed_misfits(known: int) -> int:
    """How many cells may not fit the kind of their column and count as missing: 1 in 50, none of a few."""
    return known // 50


def moments_of(piece: pa.Array, form: str | None) -> np.ndarray:
    """One piece as datetime64[s]."""
    import pyarrow as pa

    kind = piece.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        # Nanoseconds are truncated; dates outside the calendar were removed when the column was read.
        return piece.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False).astype("datetime64[s]")
    if not is_words(kind) or form is None:
        return np.full(len(piece), np.datetime64("NaT", "s"))
    coded = clean_words(piece).dictionary_encode()  # the same day is frequent
    distinct = np.append(moments_in(coded.dictionary, form), np.datetime64("NaT", "s"))
    return distinct[coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)]


def moments_in(words: pa.Array, form: str) -> np.ndarray:
    """Cleaned texts as datetime64[s]; an impossible date is NaT."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if form == "iso":
        try:
            return words.cast(pa.timestamp("s")).to_numpy(zero_copy_only=False).astype("datetime64[s]")
        except pa.ArrowInvalid:
            pass
    parts = pc.extract_regex(words, pattern=FORMS[form])

    def part(name: str, least: int) -> np.ndarray:
        if f"?P<{name}>" not in FORMS[form]:
            return np.full(len(words), least, np.int64)
        field = pc.struct_field(parts, name)
        there = pc.not_equal(field, "")
        whole = pc.if_else(there, field, pa.scalar(None, field.type)).cast(pa.int64())
        return whole.fill_null(least).to_numpy(zero_copy_only=False)

    year, month, day = part("y", 1970), part("m", 1), part("d", 1)
    if "?P<b>" in FORMS[form]:
        names = pc.index_in(pc.utf8_lower(pc.struct_field(parts, "b")), value_set=pa.array(MONTHS, words.type))
        month = names.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        year = np.where(year < CENTURY, year + 2000, np.where(year < 100, year + 1900, year))
    if "?P<q>" in FORMS[form]:
        month = 3 * part("q", 1) - 2
    hour, minute, second = part("h", 0), part("n", 0), part("s", 0)
    zone = np.zeros(len(words), np.int64)
    twelve = np.ones(len(words), bool)
    if "?P<h>" in FORMS[form]:
        zone = shift(pc.struct_field(parts, "z"))
        half = pc.utf8_lower(pc.struct_field(parts, "p")).fill_null("").to_numpy(zero_copy_only=False)
        twelve = (half == "") | ((hour >= 1) & (hour <= 12))
        hour = np.where(half == "", hour, hour % 12 + 12 * (half == "p"))
    months = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    found = months.astype("datetime64[D]") + (day - 1)
    fits = pc.is_valid(parts).to_numpy(zero_copy_only=False) & (month >= 1) & (month <= 12) & (day >= 1)
    fits &= (found.astype("datetime64[M]") == months) & (hour < 24) & (minute < 60) & (second < 61) & twelve
    moments = found.astype("datetime64[s]") + (hour * 3600 + minute * 60 + second) - zone
    return np.where(fits, moments, np.datetime64("NaT", "s"))


def shift(zones: pa.Array) -> np.ndarray:
    """UTC offsets in seconds: +01:30 is 5400."""
    ahead = np.zeros(len(zones), np.int64)
    for at, zone in enumerate(zones.to_pylist()):
        if zone and zone[0] in "+-":
            digits = zone[1:].replace(":", "").ljust(4, "0")
            ahead[at] = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (1 if zone[0] == "+" else -1)
    return ahead

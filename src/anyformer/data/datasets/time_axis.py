"""The time axis of a series: which columns give the time, and the step of each row.

The time is a date column, possibly with a clock or hour column, or columns of year, month, day and hour, or an evenly
spaced number. Rows with the same time are one step; skipped steps become missing values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.data.columns.cells import as_words
from anyformer.data.columns.convert import MONTHS, days, is_date_in_digits, numbers
from anyformer.data.columns.look import ID, NAMED_ID, Facts
from anyformer.data.frame import Frame

NAMED_TIME = (
    "time",
    "timestamp",
    "datetime",
    "date",
    "t",
    "step",
    "index",
    "ts",
    "ds",
    "epoch",
    "unix",
    "year",
    "month",
)
PARTS = ("year", "month", "day", "hour")  # columns that together give a time
CLOCK = r"^\d{1,2}([:.]\d{2}){1,2}\s?([AaPp][Mm])?$"
EQUAL, MOSTLY = 0.15, 0.75  # tolerance for unequal months; least fraction of regular steps, given weekends
REPEATED = 0.05  # maximum fraction of repeated times, as of an hour when clocks are set back
DAY = 86_400


def is_row_number(name: str, facts: Facts) -> bool:
    """Whether a column only numbers the rows, and is named so."""
    called = bool(NAMED_ID.search(name.strip())) or name.strip().lower() in ("no", "nr", "obs")
    return facts.dropped == ID and called


def find_time(frame: Frame, facts: Mapping[str, Facts], taken: Sequence[str] = ()) -> tuple[str, ...]:
    """The columns that together give the time, without those `taken`; () if there are none or several candidates."""
    names = [name for name in frame.names if name not in taken]
    dates = [name for name in names if facts[name].column.is_time]
    if len(dates) == 1:
        if has_clock(frame, dates[0], facts[dates[0]]):
            return (dates[0],)
        return (dates[0], *clock_beside(frame, names))
    if dates:
        return ()
    called = {name.strip().lower(): name for name in names}
    parts = [called[part] for part in PARTS if part in called]
    if len(parts) > 1 and parts[0].strip().lower() == "year" and not np.isnan(joined_moments(frame, parts)).all():
        return tuple(parts)
    counted = [name for name in names if name.lower() in NAMED_TIME and facts[name].column.is_number]
    return (counted[0],) if len(counted) == 1 else ()


def has_clock(frame: Frame, name: str, facts: Facts) -> bool:
    """Whether dates include a time of day."""
    moments = days(frame.column(name), facts.form or None)
    seconds = moments[~np.isnat(moments)].astype(np.int64)
    return bool((seconds % DAY != 0).any())


def clock_beside(frame: Frame, names: Sequence[str]) -> tuple[str, ...]:
    """The time-of-day column beside a date column: 18:00, or an hour from 0 to 24 named so."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in names:
        column = frame.column(name)
        if pa.types.is_time(column.type):
            return (name,)
        words = as_words(column).drop_null()
        if (
            len(words)
            and pc.all(pc.match_substring_regex(pc.utf8_trim_whitespace(words.slice(0, 1000)), CLOCK)).as_py()
        ):
            whole = name.strip().lower() in ("time", "clock", "hour") or pc.any(pc.match_substring(words, ":")).as_py()
            if whole:
                return (name,)
        if name.strip().lower() in ("hour", "hr"):
            values = numbers(column)
            if np.isfinite(values).all() and values.min() >= 0 and values.max() <= 24:
                return (name,)
    return ()


def moments_of(frame: Frame, names: Sequence[str]) -> np.ndarray:
    """The time of every row as a number: seconds if it is a date, nan if missing."""
    if len(names) > 1:
        return joined_moments(frame, names)
    found = counted_moments(frame.column(names[0]))
    return seconds_of(days(frame.column(names[0]), None)) if found is None else found


def counted_moments(column: Any) -> np.ndarray | None:
    """The times of a numeric time column; None if it has dates."""
    found = numbers(column)
    if np.isfinite(found).sum() < 0.5 * len(found) or is_date_in_digits(column):
        return None
    return found


def seconds_of(moments: np.ndarray) -> np.ndarray:
    """Seconds since 1970, nan for no date."""
    return np.where(np.isnat(moments), np.nan, moments.astype("datetime64[s]").astype(np.float64))


def joined_moments(frame: Frame, names: Sequence[str]) -> np.ndarray:
    """Seconds of times in several columns: a date and a clock, or year, month, day and hour."""
    if names[0].strip().lower() != "year":
        return seconds_of(days(frame.column(names[0]), None)) + clock_seconds(frame, names[1])
    found = {name.strip().lower(): numbers(frame.column(name)) for name in names}
    if "month" in found and not np.isfinite(found["month"]).any():
        words = as_words(frame.column(names[1])).to_pylist()
        known = {word: float(at + 1) for at, word in enumerate(MONTHS)}
        found["month"] = np.array([known.get(str(word).strip().lower()[:3], np.nan) for word in words])
    lost = ~np.isfinite(np.stack(list(found.values()))).all(0)
    whole = {name: np.where(lost, 1, values).astype(np.int64) for name, values in found.items()}
    months = ((whole["year"] - 1970) * 12 + whole.get("month", 1) - 1).astype("datetime64[M]")
    seconds = (months.astype("datetime64[D]") + (whole.get("day", 1) - 1)).astype("datetime64[s]").astype(np.float64)
    return np.where(lost, np.nan, seconds + 3600.0 * whole.get("hour", 0))


def clock_seconds(frame: Frame, name: str) -> np.ndarray:
    """Seconds since midnight; nan if a cell is no time of day."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = frame.column(name)
    if pa.types.is_time(column.type):
        micros = column.cast(pa.time64("us"), safe=False).cast(pa.int64())
        return np.asarray(pc.fill_null(pc.divide(pc.cast(micros, pa.float64()), 1e6), np.nan))
    hours = numbers(column)
    words = pc.utf8_trim_whitespace(as_words(column)).combine_chunks()
    if isinstance(words, pa.ChunkedArray):
        words = words.combine_chunks()
    if not pc.any(pc.match_substring_regex(words, CLOCK)).as_py() or np.isfinite(hours).mean() > 0.5:
        return hours * 3600.0
    stamps = pc.binary_join_element_wise("1970-01-01", pc.replace_substring(words, ".", ":"), " ")
    return seconds_of(days(pa.chunked_array([stamps]), "iso"))


def is_even(moments: np.ndarray) -> bool:
    """Whether times, in any order, have none missing, hardly any repeats, and equal steps: most are the same, or at
    least every second point is present of a grid that contains all of them."""
    if len(moments) < 3 or not np.isfinite(moments).all():
        return False
    there = np.unique(moments)
    if len(there) < 3 or len(moments) - len(there) > REPEATED * len(moments):
        return False
    steps = np.diff(there)
    usual = float(np.median(steps))
    return float((np.abs(steps - usual) <= EQUAL * usual).mean()) >= MOSTLY or step_numbers(there) is not None


def step_numbers(moments: np.ndarray) -> np.ndarray | None:
    """The index of each time, sorted and without repeats, on their common grid; None if there is none.

    A series of working days is taken as it is: no step is missing between Friday and Monday.
    """
    if len(moments) < 3:
        return None
    numbers = month_numbers(moments)
    if numbers is None:
        numbers = moments
    steps = np.diff(numbers)
    unit = steps.min()
    places = (numbers - numbers[0]) / unit
    if (steps < 1.5 * unit).mean() < 0.5 or np.abs(places - np.round(places)).max() > 0.01:
        return None
    if unit == DAY and (weekdays(moments) < 5).all():
        return None
    found = np.round(places).astype(np.int64)
    return found if found[-1] < 2 * len(found) else None


def month_numbers(moments: np.ndarray) -> np.ndarray | None:
    """Months since 1970, if times are in seconds and all at the same day and time of their month."""
    if np.abs(moments).max() > 1e12 or (np.diff(moments) < 28 * DAY).any() or (moments % 1 != 0).any():
        return None
    stamps = moments.astype(np.int64).astype("datetime64[s]")
    months = stamps.astype("datetime64[M]")
    inside = (stamps - months.astype("datetime64[s]")).astype(np.int64)
    return months.astype(np.float64) if (inside == inside[0]).all() else None


def weekdays(moments: np.ndarray) -> np.ndarray:
    """Weekdays of seconds since 1970, 0 for Monday to 6 for Sunday."""
    return (np.floor(moments / DAY).astype(np.int64) + 3) % 7


@dataclass(frozen=True)
class Timeline:
    """Rows sorted by time, and the step of each; several rows may share a step, and a step may have no row."""

    rows: np.ndarray  # (N,) indices in the frame
    steps: np.ndarray  # (N,) the step of each
    length: int

    @property
    def order(self) -> np.ndarray:
        """The row for each step: its first, or that of the previous step if it has none."""
        known, first = np.unique(self.steps, return_index=True)
        return self.rows[first][np.searchsorted(known, np.arange(self.length), side="right") - 1]

    def put(self, raw: np.ndarray) -> np.ndarray:
        """Values (N, V) of the frame's rows as values of the steps (T, V), averaged if a step has several rows."""
        found = np.full((self.length, raw.shape[1]), np.nan)
        if self.length == len(self.rows) and (self.steps == np.arange(self.length)).all():
            found[:] = raw[self.rows]
            return found
        values = raw[self.rows]
        known = np.isfinite(values)
        total, count = np.zeros_like(found), np.zeros_like(found)
        np.add.at(total, self.steps, np.where(known, values, 0.0))
        np.add.at(count, self.steps, known)
        np.divide(total, count, out=found, where=count > 0)
        return found

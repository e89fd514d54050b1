"""Columns of dates and times."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyformer.data.columns.base import ColumnValues, ParsedCells, absent
from anyformer.data.columns.convert import FORMS, NONES, clean_words, date_form, days, is_words, pieces, stands_for_none
from anyformer.data.columns.number import Number
from anyformer.data.columns.table import TableColumn
from anyformer.data.columns.values import own_value, shown
from anyformer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from anyformer.data.columns.look import Facts, Scan
    from anyformer.data.columns.parsed import Parsed
    from anyformer.data.frame import Frame
    from anyformer.data.settings import Columns

EXAMPLES = {
    "iso": "2026-01-31", "y/m/d": "2026/01/31", "d.m.y": "31.01.2026", "d/m/y": "31/01/2026", "m/d/y": "01/31/2026",
    "y-m": "2026-01", "ymd": "20260131", "y quarter": "2026 Q1", "y month": "2026 Jan", "month y": "Jan 2026",
    "d month y": "31 Jan 2026", "month d y": "Jan 31, 2026",
}  # fmt: skip


class Date(TableColumn):
    """A day or moment as year, month, day, weekday, hour (those that vary) and days since the first in training."""

    kind: ClassVar[str] = "date"
    noun: ClassVar[str] = "a date"
    rank: ClassVar[int] = 20
    is_time: ClassVar[bool] = True

    form: str = ""  # how it is written: iso, d.m.y, ...
    start: float = 0.0  # days since 1970
    parts: tuple[Number, ...] | None = None

    @classmethod
    def recognise(cls, seen: Scan) -> Facts | None:
        """Timestamps, and words that are all dates of one format."""
        if seen.holds == "moments":
            return cls.facts(seen, "iso")
        if seen.holds != "words":
            return None
        first = seen.few.slice(0, 100)
        slashes = seen.all_match(FORMS["d/m/y"], 100)  # the whole column must determine the order of day and month
        form = date_form(seen.column) if date_form(first) or slashes else None
        if form is None and slashes and not seen.hint:
            seen.hint = "; look like dates, but day and month cannot be told apart"
        return None if form is None else cls.facts(seen, form)

    @classmethod
    def facts(cls, seen: Scan, form: str) -> Facts:
        """The facts of a column of dates in this format."""
        found = days(seen.column, form)
        good = found[~np.isnat(found)]
        nones = (
            sum(stands_for_none(clean_words(piece)).true_count for piece in pieces(seen.column))
            if seen.holds == "words"
            else 0
        )
        odd = seen.known - nones - len(good)
        if not len(good):
            return seen.left_out("all missing")
        reason = f"dates from {str(good.min())[:10]} to {str(good.max())[:10]}"
        return seen.made(
            cls.kind, reason + (f"; {odd:,} cells are none" if odd else ""), odd=odd, form=form, nones=nones
        )

    @classmethod
    def fitting_cells(cls, column: pa.ChunkedArray, facts: Facts) -> tuple[int, str]:
        form = date_form(column) or ""
        return int(np.count_nonzero(~np.isnat(days(column, form or None)))), form

    @classmethod
    def read(cls, cells: pa.ChunkedArray, form: str = "") -> ColumnValues:
        return days(cells, form or None)

    @classmethod
    def marks(cls, parsed: Parsed, name: str, form: str) -> np.ndarray | None:
        moments: np.ndarray = parsed.values(cls, name, form)
        return moments.astype(np.int64)

    @classmethod
    def fit(cls, name: str, values: ColumnValues, settings: Columns, *, seed: int = 0, form: str = "") -> Date:
        """The parts that vary in the training rows, each scaled; `form` is their format, if known."""
        form = form if isinstance(values, np.ndarray) else form or date_form(values) or ""
        moments = values if isinstance(values, np.ndarray) else days(values, form or None)
        elapsed = since_1970(moments)
        known = elapsed[np.isfinite(elapsed)]
        start = float(known.min()) if len(known) else 0.0
        parts = []
        for part, numbers in dates(moments, start).items():
            finite = numbers[np.isfinite(numbers)]
            if part == "elapsed days" or (len(finite) and finite.min() < finite.max()):
                parts.append(Number.fit(part, numbers, settings, seed=seed))
        return cls(name=name, form=form, start=start, parts=tuple(parts))

    @property
    def width(self) -> int:
        return len(self.parts or ())

    def read_from(self, parsed: Parsed) -> ColumnValues:
        return parsed.values(type(self), self.name, self.form)

    def encode(self, values: ColumnValues) -> np.ndarray:
        """Scaled parts (N, parts), nan if there is no date."""
        moments = values if isinstance(values, np.ndarray) else days(values, self.form or None)
        found = dates(moments, self.start)
        return np.stack([part.encode(found[part.name]) for part in self.parts or ()], 1)

    def features(self, frame: Frame) -> np.ndarray:
        """The parts that the network also gets, unscaled (N, parts): year, weekday, hour, ... and elapsed days."""
        found = dates(days(frame.column(self.name), self.form or None), self.start)
        return np.stack([found[part.name] for part in self.parts or ()], 1)

    def parse_cells(self, cells: pa.ChunkedArray, *, known: bool = False) -> ParsedCells:
        import pyarrow as pa

        if not (is_words(cells.type) or pa.types.is_temporal(cells.type)):
            return super().parse_cells(cells, known=known)
        moments = days(cells, self.form or "iso")
        odd = np.isnat(moments) & ~absent(cells, nones=True)
        return pa.array(moments), {row: self.wrong(cells[row].as_py()) for row in np.flatnonzero(odd).tolist()}

    def parse_values(self, values: Sequence[Any], *, known: bool = False) -> ParsedCells:
        """Texts in the format of the training rows, and Python dates and datetimes."""
        import pyarrow as pa

        values = [own_value(value) for value in values]
        written = [value if isinstance(value, str) and not self.is_missing(value) else None for value in values]
        moments = days(pa.chunked_array([pa.array(written, pa.string())]), self.form or "iso").copy()
        bad: dict[int, UserError] = {}
        for row, value in enumerate(values):
            if isinstance(value, datetime.datetime):
                if value.tzinfo is not None:
                    value = value.astimezone(datetime.UTC).replace(tzinfo=None)
                moments[row] = np.datetime64(value, "s")
            elif isinstance(value, datetime.date):
                moments[row] = np.datetime64(value, "s")
            elif not self.is_missing(value) and np.isnat(moments[row]):
                bad[row] = self.wrong(value)
        return pa.array(moments), bad

    def is_missing(self, value: Any) -> bool:
        return super().is_missing(value) or (isinstance(value, str) and value.strip().lower() in NONES)

    def wrong(self, value: Any) -> UserError:
        return UserError(f"{shown(value)} is not a date as the model was trained on", where=self.name,
                         fix=f"write it as {self.example()}")  # fmt: skip

    def example(self) -> str:
        return EXAMPLES.get(self.form, EXAMPLES["iso"])


def since_1970(moments: np.ndarray) -> np.ndarray:
    """Days since 1970 with fraction; nan for no date."""
    seconds = moments.astype("datetime64[s]").astype(np.int64) / 86400.0
    return np.where(np.isnat(moments), np.nan, seconds)


def dates(moments: np.ndarray, start: float) -> dict[str, np.ndarray]:
    """The parts of each timestamp as numbers."""
    missing = np.isnat(moments)
    month, day = moments.astype("datetime64[M]"), moments.astype("datetime64[D]")
    whole = {
        "year": moments.astype("datetime64[Y]").astype(np.int64) + 1970,
        "month": month.astype(np.int64) % 12 + 1,
        "day": (day - month.astype("datetime64[D]")).astype(np.int64) + 1,
        "weekday": (day.astype(np.int64) + 3) % 7,  # 1970 began on a Thursday; Monday is 0
        "hour": (moments.astype("datetime64[h]") - day.astype("datetime64[h]")).astype(np.int64),
    }
    parts = {name: np.where(missing, np.nan, values.astype(np.float64)) for name, values in whole.items()}
    return parts | {"elapsed days": since_1970(moments) - start}

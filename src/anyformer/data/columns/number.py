"""Columns of numbers."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from anyformer.data.columns.base import ColumnValues, ParsedCells, absent, is_scalar
from anyformer.data.columns.cells import LARGEST, clip_numbers
from anyformer.data.columns.convert import NONES, clean_words, is_date_in_digits, pieces, stands_for_none
from anyformer.data.columns.table import TableColumn
from anyformer.data.columns.values import shown
from anyformer.data.columns.written import (
    POINTS,
    has_thousands,
    is_number_form,
    number_form,
    number_of_text,
    numbers_written,
)
from anyformer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from anyformer.data.columns.look import Facts, Scan
    from anyformer.data.columns.parsed import Parsed
    from anyformer.data.frame import Frame
    from anyformer.data.settings import Columns

NOISE = 1e-3  # noise, in standard deviations, that breaks ties before quantiles are taken, as in FT-Transformer's code
EDGE = 1e-7  # quantile of values at the ends of the training range
SPAN = re.compile(r"from (\S+) to ([^\s;]+)")


class Number(TableColumn):
    """A scaled number: by a quantile transform to a normal distribution, or by mean and standard deviation.

    Missing values stay nan. The quantile transform is constant beyond the range of the training rows.
    """

    kind: ClassVar[str] = "number"
    noun: ClassVar[str] = "a number"
    rank: ClassVar[int] = 10
    is_number: ClassVar[bool] = True

    scale: Literal["quantile", "standard", "none"] = "quantile"
    form: str = ""  # how it is written: 1.234,5 €; "" as programs write numbers
    mean: float = 0.0
    deviation: float = 1.0
    quantiles: tuple[float, ...] | None = None

    def check(self) -> None:
        if self.deviation <= 0:
            raise UserError(f"deviation {self.deviation} is not above 0", where=f"column {self.name}", fix="fit again")
        if self.quantiles is not None and (len(self.quantiles) < 2 or list(self.quantiles) != sorted(self.quantiles)):
            raise UserError("quantiles do not rise", where=f"column {self.name}", fix="fit again")

    @classmethod
    def recognise(cls, seen: Scan) -> Facts | None:
        """Numeric cells, unless they only count the rows."""
        if seen.holds == "words":
            plain = seen.maybe_number and 2 * seen.numeric >= seen.known
            all_plain = plain and seen.numeric + seen.nones == seen.known
            form = "" if all_plain and (seen.whole or not has_thousands(seen.column)) else number_form(seen.column)
            if form:
                return cls.in_form(seen, form)
            if not plain or (seen.whole and is_date_in_digits(seen.column)):
                return None
        if seen.holds not in ("words", "numbers"):
            return None
        odd = seen.known - seen.numeric - seen.nones
        if seen.whole and not odd and seen.known == seen.rows > 1:
            counts = seen.step_one and (seen.named_id or seen.rows >= 20) and not seen.named_year
            if counts or (seen.named_id and seen.all_differ()):
                return seen.id_of(cls.kind)
            if seen.named_id and seen.rows >= 20 and seen.share() > 0.5:
                return seen.made(cls.kind, "", dropped="named like an id, most rows have a value of their own")
        reason = f"{'whole numbers' if seen.whole else 'numbers'} from {seen.low:g} to {seen.high:g}"
        if odd:
            reason += f"; {odd:,} cells are none and count as missing"
        return seen.made(cls.kind, reason, odd=odd, nones=seen.nones)

    @classmethod
    def beside(cls, seen: Scan, facts: Facts, others: Sequence[Facts]) -> Facts:
        """Numbers such as 12.500 are thousands in a file whose other columns have a decimal comma."""
        comma = any(other.form.startswith(POINTS) for other in others)
        plain = seen.holds == "words" and not facts.form and not facts.dropped and not seen.whole
        return cls.in_form(seen, POINTS) if comma and plain and has_thousands(seen.column, whole=True) else facts

    @classmethod
    def in_form(cls, seen: Scan, form: str) -> Facts:
        """The facts of a column of numbers in this format."""
        found = numbers_written(seen.column, form)
        good = found[~np.isnan(found)]
        nones = sum(stands_for_none(clean_words(piece)).true_count for piece in pieces(seen.column))
        odd = seen.known - nones - len(good)
        reason = f"numbers from {good.min():g} to {good.max():g}; written like {form}"
        return seen.made(cls.kind, reason, odd=odd, form=form, nones=nones)

    @classmethod
    def fitting_cells(cls, column: pa.ChunkedArray, facts: Facts) -> tuple[int, str]:
        form = number_form(column) or ""
        return int(np.count_nonzero(~np.isnan(numbers_written(column, form)))), form

    @classmethod
    def describe(cls, facts: Facts) -> str:
        span = SPAN.search(facts.reason)
        form = f", written like {facts.form}" if facts.form else ""
        return f"{span[1]}..{span[2]}{form}" if span else facts.reason

    @classmethod
    def read(cls, cells: pa.ChunkedArray, form: str = "") -> ColumnValues:
        return numbers_written(cells, form)

    def read_from(self, parsed: Parsed) -> ColumnValues:
        return parsed.values(type(self), self.name, self.form)

    def features(self, frame: Frame) -> np.ndarray:
        return numbers_written(frame.column(self.name), self.form)

    @classmethod
    def marks(cls, parsed: Parsed, name: str, form: str) -> np.ndarray | None:
        values = parsed.values(cls, name, form) + 0.0  # turns -0.0 into 0.0
        return np.where(np.isnan(values), np.nan, values).view(np.int64)

    @classmethod
    def fit(cls, name: str, values: ColumnValues, settings: Columns, *, seed: int = 0, form: str = "") -> Number:
        """Fit the scale to a column's training rows."""
        form = form if is_number_form(form) else ""
        values = values if isinstance(values, np.ndarray) else numbers_written(values, form)
        values = clip_numbers(values[np.isfinite(values)])
        if settings.scale == "none" or len(values) == 0:
            return cls(name=name, form=form, scale="none")
        mean, deviation = float(values.mean()), float(values.std())
        if deviation <= abs(mean) * 1e-14:  # one value, or rounding errors around one
            return cls(name=name, form=form, scale="standard", mean=mean)
        if settings.scale == "standard":
            return cls(name=name, form=form, scale="standard", mean=mean, deviation=deviation)
        # The noise follows from the order of the numbers: it does not depend on the column's name or unit.
        ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
        draw = np.random.default_rng((seed, zlib.crc32(ranks.tobytes())))
        thinned = thin_ties(values)
        noisy = thinned + NOISE * deviation * draw.standard_normal(len(thinned))
        return cls(name=name, form=form, mean=mean, deviation=deviation, quantiles=quantiles(noisy, len(values)))

    def encode(self, values: ColumnValues) -> np.ndarray:
        """Scaled numbers (N,), nan if missing."""
        values = clip_numbers(values if isinstance(values, np.ndarray) else numbers_written(values, self.form))
        if self.scale == "standard":
            values = (values - self.mean) / self.deviation
        elif self.quantiles is not None:
            values = normal(values, np.asarray(self.quantiles))
        return np.clip(values, -LARGEST, LARGEST).astype(np.float32)

    def parse_cells(self, cells: pa.ChunkedArray, *, known: bool = False) -> ParsedCells:
        import pyarrow as pa

        if not is_scalar(cells.type):
            return super().parse_cells(cells, known=known)
        values = numbers_written(cells, self.form)
        odd = np.isnan(values) & ~absent(cells, nones=True)
        odd = np.isinf(cells.to_numpy()) if pa.types.is_floating(cells.type) else odd
        bad = {row: self.wrong(cells[row].as_py()) for row in np.flatnonzero(odd).tolist()}
        return pa.array(values, from_pandas=True), bad

    def parse_value(self, value: Any) -> float:
        if isinstance(value, str):
            said = number_of_text(value, self.form)
            if said is None:
                raise self.wrong(value)
            value = said
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise self.wrong(value)
        try:
            found = float(value)
        except OverflowError:
            raise self.wrong(value) from None
        if not math.isfinite(found):
            raise self.wrong(value)
        return found

    def is_missing(self, value: Any) -> bool:
        return super().is_missing(value) or (isinstance(value, str) and value.strip().lower() in NONES)

    def wrong(self, value: Any) -> UserError:
        if not self.form:
            return super().wrong(value)
        return UserError(f"{shown(value)} is not {self.noun} as the model was trained on", where=self.name,
                         fix=f"write it like {self.form}")  # fmt: skip

    def arrow(self, values: list[Any], bad: dict[int, UserError]) -> pa.Array:
        import pyarrow as pa

        return pa.array(values, pa.float64())

    def example(self) -> float:
        return round(self.mean, 3)


def thin_ties(values: np.ndarray) -> np.ndarray:
    """The values, with a value that occurs n times reduced to about sqrt(n) times.

    If nine of ten rows are 0, the quantiles of the others are what can distinguish rows: this gives them most of the
    scale. A column without ties is unchanged.
    """
    different, counts = np.unique(values, return_counts=True)
    return np.repeat(different, np.round(np.sqrt(counts)).astype(np.int64))


def quantiles(values: np.ndarray, rows: int | None = None) -> tuple[float, ...]:
    """Evenly spaced quantiles of the values, 10 to 1000 of them: one per 30 `rows`, by default the number of values."""
    count = max(min((rows or len(values)) // 30, 1000), 10)
    found = np.percentile(values, np.linspace(0, 100, count))
    return tuple(float(value) for value in np.maximum.accumulate(found))


def normal(values: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Values mapped to a normal distribution by the quantiles `marks`; equal marks share their midpoint."""
    shares = np.linspace(0, 1, len(marks))
    known = values[~np.isnan(values)]
    place = np.interp(known, marks, shares)
    if (np.diff(marks) <= 0).any():
        place = 0.5 * (place - np.interp(-known, -marks[::-1], -shares[::-1]))
    place = np.where(known >= marks[-1], 1.0, place)
    place = np.clip(np.where(known <= marks[0], 0.0, place), EDGE, 1 - EDGE)
    found = np.full(values.shape, np.nan)
    found[~np.isnan(values)] = torch.special.ndtri(torch.from_numpy(place)).numpy()
    return found

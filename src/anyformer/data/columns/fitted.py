"""Columns that were fitted on training rows: how numbers, categories and dates of a table become arrays."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from anyformer.data.columns.cells import LARGEST, bounded, coded, in_order
from anyformer.data.columns.kinds import date_form, days, numbers
from anyformer.data.settings import Columns
from anyformer.errors import UserError
from anyformer.spec import Spec

if TYPE_CHECKING:
    import pyarrow as pa

NOISE = 1e-3  # of a column's deviation: ties drawn apart before quantiles are taken, as FT-Transformer's authors do
EDGE = 1e-7  # a value at the end of the training range stands at this quantile
MISSING = -1  # the id of a category that is not there


class Column(Spec, slot=True):
    """One input column as it was found in the training rows."""

    name: str


class Number(Column):
    """A number, scaled: through the quantiles of the training rows to a normal distribution, or by mean and deviation.

    What is not there stays nan. Beyond the range of the training rows the quantile scale does not go on.
    """

    scale: Literal["quantile", "standard", "none"] = "quantile"
    mean: float = 0.0
    deviation: float = 1.0
    quantiles: tuple[float, ...] | None = None

    def check(self) -> None:
        if self.deviation <= 0:
            raise UserError(f"deviation {self.deviation} is not above 0", where=f"column {self.name}", fix="fit again")
        if self.quantiles is not None and (len(self.quantiles) < 2 or list(self.quantiles) != sorted(self.quantiles)):
            raise UserError("quantiles do not rise", where=f"column {self.name}", fix="fit again")

    @classmethod
    def fit(cls, name: str, column: pa.ChunkedArray | np.ndarray, settings: Columns, *, seed: int = 0) -> Number:
        """The scale of a column's training rows."""
        values = column if isinstance(column, np.ndarray) else numbers(column)
        values = bounded(values[np.isfinite(values)])
        if settings.scale == "none" or len(values) == 0:
            return cls(name=name, scale="none")
        mean, deviation = float(values.mean()), float(values.std())
        if deviation <= abs(mean) * 1e-14:  # one value, or rounding around one
            return cls(name=name, scale="standard", mean=mean)
        if settings.scale == "standard":
            return cls(name=name, scale="standard", mean=mean, deviation=deviation)
        # The noise follows from the order of the numbers: neither the column's name nor its unit changes anything.
        ranks = np.unique(values, return_inverse=True)[1].astype(np.int64)
        draw = np.random.default_rng((seed, zlib.crc32(ranks.tobytes())))
        noisy = values + NOISE * deviation * draw.standard_normal(len(values))
        return cls(name=name, mean=mean, deviation=deviation, quantiles=quantiles(noisy))

    def encode(self, column: pa.ChunkedArray | np.ndarray) -> np.ndarray:
        """Scaled numbers (N,), nan where there is none."""
        values = column if isinstance(column, np.ndarray) else numbers(column)
        values = bounded(values)
        if self.scale == "standard":
            values = (values - self.mean) / self.deviation
        elif self.quantiles is not None:
            values = normal(values, np.asarray(self.quantiles))
        return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


def quantiles(values: np.ndarray) -> tuple[float, ...]:
    """Evenly spaced quantiles of the values, one for 30 rows, 10 to 1000 of them."""
    count = max(min(len(values) // 30, 1000), 10)
    found = np.percentile(values, np.linspace(0, 100, count))
    return tuple(float(value) for value in np.maximum.accumulate(found))


def normal(values: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Values to their place in a normal distribution by the quantiles `marks`; equal marks share their middle."""
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


class Category(Column):
    """One of the values seen in training, by its place among them; what is not there is -1, a new value comes last."""

    values: tuple[str, ...] | None = None  # None: the training rows had none

    @property
    def count(self) -> int:
        """Ids there are: every value and the unknown one."""
        return len(self.values or ()) + 1

    @classmethod
    def fit(cls, name: str, column: pa.ChunkedArray, settings: Columns) -> Category:
        """The values of a column's training rows; those rarer than asked are as good as unknown."""
        codes, words = coded(column)
        counts = np.bincount(codes[codes >= 0], minlength=len(words))
        kept = [word for word, count in zip(words, counts.tolist(), strict=True) if count >= settings.rare]
        return cls(name=name, values=in_order(kept) or None)

    def encode(self, column: pa.ChunkedArray) -> np.ndarray:
        """Ids (N,), -1 where there is no value."""
        codes, words = coded(column)
        ids = {value: number for number, value in enumerate(self.values or ())}
        table = np.array([*(ids.get(word, len(ids)) for word in words), MISSING], dtype=np.int32)
        return table[codes]


class Date(Column):
    """A day or moment as year, month, day, weekday, hour (those that vary) and days since the first in training."""

    form: str = ""  # how it is written: iso, d.m.y, ...
    start: float = 0.0  # days since 1970
    parts: tuple[Number, ...] | None = None

    @classmethod
    def fit(
        cls, name: str, column: pa.ChunkedArray | np.ndarray, settings: Columns, *, seed: int = 0, form: str = ""
    ) -> Date:
        """The parts that vary in the training rows, each scaled; `form` is how they are written, where it is known."""
        form = form if isinstance(column, np.ndarray) else form or date_form(column) or ""
        moments = column if isinstance(column, np.ndarray) else days(column, form or None)
        elapsed = since_1970(moments)
        known = elapsed[np.isfinite(elapsed)]
        start = float(known.min()) if len(known) else 0.0
        parts = []
        for part, values in dates(moments, start).items():
            finite = values[np.isfinite(values)]
            if part == "elapsed days" or (len(finite) and finite.min() < finite.max()):
                parts.append(Number.fit(part, values, settings, seed=seed))
        return cls(name=name, form=form, start=start, parts=tuple(parts))

    def encode(self, column: pa.ChunkedArray | np.ndarray) -> np.ndarray:
        """Scaled parts (N, parts), nan where there is no date."""
        moments = column if isinstance(column, np.ndarray) else days(column, self.form or None)
        found = dates(moments, self.start)
        return np.stack([part.encode(found[part.name]) for part in self.parts or ()], 1)


def since_1970(moments: np.ndarray) -> np.ndarray:
    """Days since 1970 with their fraction; nan for no date."""
    seconds = moments.astype("datetime64[s]").astype(np.int64) / 86400.0
    return np.where(np.isnat(moments), np.nan, seconds)


def dates(moments: np.ndarray, start: float) -> dict[str, np.ndarray]:
    """The parts of each moment as numbers."""
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


class Text(Column):
    """Running text; what it becomes is the tokenizer's business."""


class Sentence(Column):
    """A sentence already cut into words: a list of strings a row."""


class Image(Column):
    """A picture: a path, or the bytes of a picture file."""

    size: int | None = None  # rows and columns a network sees
    channels: int | None = None


class Sound(Column):
    """A recording: the path of a file. The last two are the log-mel powers of the training clips."""

    rate: int | None = None  # samples a second
    samples: int | None = None  # of the longest clip
    mean: float = 0.0
    deviation: float = 1.0


def fit_column(name: str, kind: str, cells: Any, settings: Columns, *, seed: int, form: str = "") -> Column:
    """The column of one kind, fitted on the cells (or, of numbers and dates, the values) given."""
    if kind == "number":
        return Number.fit(name, cells, settings, seed=seed)
    if kind == "category":
        return Category.fit(name, cells, settings)
    if kind == "date":
        return Date.fit(name, cells, settings, seed=seed, form=form)
    plain: dict[str, type[Column]] = {"text": Text, "sentence": Sentence, "image": Image, "sound": Sound}
    return plain[kind](name=name)

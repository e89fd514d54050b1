"""Categorical columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from anyformer.data.columns.base import ColumnValues, ParsedCells, is_scalar
from anyformer.data.columns.cells import as_words, factorize, sort_names
from anyformer.data.columns.modality import Encoding
from anyformer.data.columns.table import TableColumn
from anyformer.data.columns.values import spelled
from anyformer.data.counts import describe_cell
from anyformer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from anyformer.data.columns.look import Facts, Scan
    from anyformer.data.settings import Columns

MISSING_ID = -1  # id of a missing category
CODE = r"^(?:[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-fA-F]{24}|[0-9a-fA-F]{32}|[0-9a-fA-F]{40,128})$"


class Category(TableColumn):
    """A value's index among those seen in training; -1 if missing, the last id if unknown."""

    kind: ClassVar[str] = "category"
    noun: ClassVar[str] = "a text"
    rank: ClassVar[int] = 50

    values: tuple[str, ...] | None = None  # None: the training rows had none

    @classmethod
    def recognise(cls, seen: Scan) -> Facts | None:
        """Booleans, times of day, and words with few distinct values; words that differ in every row are an id."""
        if seen.holds == "truths":
            return seen.made(cls.kind, "true or false")
        if seen.holds == "clocks":
            return seen.made(cls.kind, "times of a day")
        if seen.holds != "words":
            return None
        if (seen.all_match(CODE) or seen.named_id) and seen.known == seen.rows > 1 and seen.all_differ():
            return seen.id_of(cls.kind)
        return cls.repeated(seen)

    @classmethod
    def repeated(cls, seen: Scan) -> Facts | None:
        """The facts of a column whose words repeat often enough, or are few and short; else None."""
        share, counted, single = seen.share(), seen.counted, seen.single_words
        if share <= 0.5 and (share <= 0.1 or (seen.distinct <= 50 and share <= 0.25) or single) and seen.length <= 80:
            often = ", each often" if share <= 0.05 else ""
            noun = ("word" if single else "value") + ("s" if seen.distinct > 1 else "")
            few = f"{counted} different {noun}{often}" if seen.distinct > 1 else f"one {noun} or nothing"
            return seen.made(cls.kind, few + seen.hint)
        if seen.distinct <= 20 and single and share < 1:
            return seen.made(cls.kind, f"{counted} different words{seen.hint}")
        return None

    @classmethod
    def describe(cls, facts: Facts) -> str:
        return f"{facts.counted} values"

    @property
    def count(self) -> int:
        """Number of ids: all values and the unknown one."""
        return len(self.values or ()) + 1

    @property
    def ids(self) -> int | None:
        return self.count

    @classmethod
    def read(cls, cells: pa.ChunkedArray, form: str = "") -> ColumnValues:
        return cells

    @classmethod
    def fit(cls, name: str, values: ColumnValues, settings: Columns, *, seed: int = 0, form: str = "") -> Category:
        """Fit the values of a column's training rows; those below the minimum frequency count as unknown."""
        codes, words = factorize(values)
        counts = np.bincount(codes[codes >= 0], minlength=len(words))
        kept = [word for word, count in zip(words, counts.tolist(), strict=True) if count >= settings.rare]
        return cls(name=name, values=sort_names(kept) or None)

    def encode(self, values: ColumnValues) -> np.ndarray:
        """Ids (N,), -1 if missing."""
        codes, words = factorize(values)
        ids = {value: number for number, value in enumerate(self.values or ())}
        table = np.array([*(ids.get(word, len(ids)) for word in words), MISSING_ID], dtype=np.int32)
        return table[codes]

    def lost(self, encoded: np.ndarray) -> np.ndarray:
        return encoded == MISSING_ID

    def note_unknown(self, work: Encoding, encoded: np.ndarray, *, refused: bool) -> None:
        new = encoded == self.count - 1
        if not new.any():
            return
        strange = new.copy()
        if work.train is not None:
            strange[work.train] = False  # too rare in training to count, as requested
        row = int(np.flatnonzero(strange if strange.any() else new)[0])
        first = describe_cell(work.frame, self.name, row)
        if refused and strange.any():
            value, _, place = first.rpartition(", ")
            raise UserError(
                f"{value} is not among the {self.count - 1} values of the training rows", where=place,
                fix="repair the cell, or allow it with data.columns.unknown=bucket",
            )  # fmt: skip
        work.counts.unknown[self.name] = int(new.sum())
        work.counts.unknown_first[self.name] = first

    def parse_cells(self, cells: pa.ChunkedArray, *, known: bool = False) -> ParsedCells:
        if not is_scalar(cells.type):
            return super().parse_cells(cells, known=known)
        words = as_words(cells).combine_chunks()
        return words, self.unknown_words(words) if known else {}

    def parse_values(self, values: Sequence[Any], *, known: bool = False) -> ParsedCells:
        words, bad = super().parse_values(values)
        return words, bad | (self.unknown_words(words) if known else {})

    def parse_value(self, value: Any) -> str:
        word = parse_word(value, self.name)
        if word is None:
            raise self.wrong(value)
        return word

    def unknown_words(self, words: pa.Array) -> dict[int, UserError]:
        """The rows with a word unseen in training, each with its error."""
        import pyarrow as pa

        new = self.encode(pa.chunked_array([words])) == self.count - 1
        return {row: self.unknown(words[row].as_py()) for row in np.flatnonzero(new).tolist()}

    def unknown(self, word: str) -> UserError:
        """The error for a value unseen in training."""
        what = f"{word[:40]!r} is not among the {self.count - 1} values of the training rows"
        return UserError(what, where=self.name, fix=did_you_mean(word[:40], self.values or ()))

    def example(self) -> str:
        return (self.values or ("x",))[0]


def parse_word(value: Any, where: str) -> str | None:
    """A string, or a number or boolean as written in training; None for anything else."""
    import pyarrow as pa

    if isinstance(value, str):
        return spelled(value, where)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, bool | float | Decimal) or not math.isfinite(value):
        return None
    return str(as_words(pa.chunked_array([pa.array([value])]))[0].as_py())

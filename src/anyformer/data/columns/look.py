"""Infer the kinds of a table's columns: every kind tries in turn to recognise a column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyformer.data.columns.cells import is_list
from anyformer.data.columns.convert import (
    PIECE,
    allowed_misfits,
    clean_words,
    is_words,
    numbers_in,
    numbers_of,
    pieces,
    stands_for_none,
)
from anyformer.data.columns.kinds import SKIP, Category, Column, kind_named, kinds
from anyformer.data.frame import Frame
from anyformer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

MANY = 10_000  # distinct values are counted up to this
NAMED_ID = re.compile(
    r"(?:^|[\s_\-.#])(?i:[pqu]?ids?\d?|uuid|guid|index|idx|key|rowid|row|row[ _.]?(?:names?|numbers?|num|nr|no)|"
    r"unnamed: ?0)$|[a-z](?:Id|ID)\d?$"
)
NAMED_GROUP = re.compile(
    r"^(?i:user|patient|subject|person|customer|client|speaker|session|household|student|driver|player|employee|"
    r"machine|device|sensor|station|store|shop)s?(?:[\s_\-.]?(?:name|no|nr|number|code))?$"
)
NAMED_YEAR = re.compile(r"(?:^|[\s_\-.#])(?i:year|years|yr|yyyy|jahr|annee|ano)$|[a-z]Year$")
NAMED_LOGIN = re.compile(r"(?:^|[\s_\-.])(?i:user[ _]?name|user|login|handle|nick(?:name)?|screen[ _]?name)$")
ONE_VALUE = "one value only"
ID = "a different value in every row: looks like an id"
# Patterns of words that identify rows and carry no other information. Formulas and sequences contain other signs or no
# digits, and stay.
TELLING_APART = {
    "e-mail addresses": r"^[^\s@]+@[^\s@]+\.[A-Za-z]{2,}$",
    "web addresses": r"^(?:(?:https?|ftp)://|www\.)\S+$",
    "codes": r"^[A-Za-z0-9._:/#-]{0,39}[0-9][A-Za-z0-9._:/#-]{0,39}$",
}
ENOUGH_ROWS = 20  # below which nearly every column has a different value in nearly every row
NEARLY_ALL = 0.95
Holds = Literal["words", "numbers", "truths", "moments", "clocks", "lists of words", "lists"]  # cells by their type


@dataclass(frozen=True)
class Facts:
    """The inferred kind of a column, with a readable `reason`."""

    kind: str  # the name of a kind of column, or skip
    missing: int
    unique: int | Literal["many"]  # exact up to 10,000
    rows: int
    examples: tuple[str, ...] = ()
    reason: str = ""
    dropped: str | None = None  # why it is left out, if it is
    odd: int = 0  # cells that do not fit the kind and are taken as missing
    form: str = ""  # how dates or numbers are written: iso, d.m.y, ...
    asked: bool = False  # whether the user gave the kind

    @property
    def column(self) -> type[Column]:
        """The kind itself; a column that is left out has no kind."""
        return Column if self.kind == SKIP else kind_named(self.kind)

    @property
    def readable(self) -> str:
        """The kind to request for a column that would be left out."""
        return Category.kind if self.kind == SKIP else self.kind

    @property
    def counted(self) -> str:
        """The number of distinct values, as text."""
        return self.unique if isinstance(self.unique, str) else f"{self.unique:,}"


def look(frame: Frame, asked: Mapping[str, str]) -> dict[str, Facts]:
    """Infer the kind of each column; `asked` are kinds given by the user, which override."""
    folders = sorted({str(Path(source.path).parent) for source in frame.sources if source.path})
    scans = {name: Scan(name, frame.column(name), folders) for name in frame.names}
    seen = {name: scan.facts() for name, scan in scans.items()}
    seen = {name: facts.column.beside(scans[name], facts, list(seen.values())) for name, facts in seen.items()}
    return {name: as_asked(name, facts, asked[name], frame.column(name)) if name in asked else facts
            for name, facts in seen.items()}  # fmt: skip


def as_asked(name: str, facts: Facts, kind: str, column: pa.ChunkedArray) -> Facts:
    """The facts of a column whose kind was given."""
    if kind == SKIP:
        why = "left out as asked"
        return replace(facts, kind=kind, reason=why, dropped=why, odd=0, form="")
    known = facts.rows - facts.missing
    good, form = kind_named(kind).fitting_cells(column, facts)
    if known and not good:
        shown = f" like {facts.examples[0]!r}" if facts.examples else ""
        raise UserError(f"the column {name!r} holds no {kind}s but values{shown}", where=f"data.types {name}",
                        fix=f"leave out {name}={kind}")  # fmt: skip
    return replace(facts, kind=kind, reason="as asked", dropped=None, odd=max(known - good, 0), form=form,
                   asked=True)  # fmt: skip


def finite(piece: Any) -> Any:
    """Typed cells with nan as missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(piece.type):
        return pc.if_else(pc.is_finite(piece), piece, pa.scalar(None, piece.type))
    return piece


def holds(kind: pa.DataType) -> Holds | None:
    """The type of the cells of an Arrow type; None for bytes and structs."""
    from pyarrow import types

    if is_list(kind):
        return "lists of words" if is_words(kind.value_type) or types.is_null(kind.value_type) else "lists"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_struct(kind):
        return None
    if types.is_boolean(kind):
        return "truths"
    if types.is_temporal(kind):
        return "clocks" if types.is_time(kind) else "moments"
    return "words" if is_words(kind) else "numbers"


class Scan:
    """One column scanned piece by piece: the statistics by which kinds recognise it."""

    def __init__(self, name: str, column: pa.ChunkedArray, folders: list[str]) -> None:
        self.name, self.column, self.folders, self.rows = name, column, folders, len(column)
        self.holds = holds(column.type)
        self.known = 0  # cells that are not missing
        self.seen: Any = None  # the distinct values so far, None once there are too many
        self.many = False
        self.numeric = 0
        self.nones = 0  # cells with a word for a missing number
        self.low, self.high, self.whole = np.inf, -np.inf, True
        self.maybe_number = True
        self.step_one = True
        self.last: float | None = None
        self.letters = self.gaps = 0
        self.hint = ""  # a near miss of one kind, added to the reason of another

    def facts(self) -> Facts:
        """Scan all pieces, then let every kind try in order."""
        if self.holds is None:
            return self.left_out("holds bytes, not text")
        if self.holds in ("lists", "lists of words"):
            self.take_lists()
        else:
            for piece in pieces(self.column):
                self.take(piece)
        if not self.known and self.holds != "lists":
            return self.left_out("all missing" if self.rows else "no rows")
        if self.distinct == 1 and not self.many and self.known == self.rows > 1:
            return self.made(Category.kind, "", dropped=ONE_VALUE)
        found = (kind.recognise(self) for kind in kinds())
        return next((facts for facts in found if facts is not None), None) or self.left_out("holds lists of numbers")

    def take(self, piece: Any) -> None:
        """Update the statistics with one piece."""
        import pyarrow.compute as pc

        words = self.holds == "words"
        values = (clean_words(piece) if words else finite(piece)).drop_null()
        self.known += len(values)
        self.count(values)
        if self.maybe_number and len(values):
            found = self.find_numbers(values) if words else numbers_of(values)
            if words and 0 < len(found) < len(values):
                self.nones += pc.sum(stands_for_none(values)).as_py()
            self.weigh(found)
        if words and len(values):
            self.letters += pc.sum(pc.utf8_length(values)).as_py()
            self.gaps += pc.sum(pc.count_substring(values, " ")).as_py()

    def count(self, values: Any) -> None:
        """Collect the distinct values while they are few."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.many:
            return
        new = pc.unique(values)
        self.seen = new if self.seen is None else pc.unique(pa.concat_arrays([self.seen, new]))
        if len(self.seen) > MANY:
            self.many, self.seen = True, self.seen.slice(0, MANY)

    def find_numbers(self, words: Any) -> np.ndarray:
        """The numbers among words; a quick check of the first cells saves the work if there are none."""
        if (
            np.isnan(numbers_in(words.slice(0, 100))).all()
            and np.isnan(numbers_in(words.slice(len(words) // 2, 100))).all()
        ):
            return np.zeros(0)
        found = numbers_in(words)
        return found[~np.isnan(found)]

    def weigh(self, found: np.ndarray) -> None:
        """Update the statistics with numbers; give up if too many cells were none."""
        self.numeric += len(found)
        if self.known - self.nones - self.numeric > allowed_misfits(self.rows):
            self.maybe_number = False  # more misfits than a column of this length may have
            return
        if len(found):
            self.low, self.high = min(self.low, found.min()), max(self.high, found.max())
            self.whole = self.whole and bool((found == np.round(found)).all())
            joined = found if self.last is None else np.concatenate([[self.last], found])
            self.step_one = self.step_one and self.whole and bool((np.diff(joined) == 1).all())
            self.last = found[-1]

    def take_lists(self) -> None:
        """Count the non-empty lists; the first is the example."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for piece in pieces(self.column):
            lengths = pc.list_value_length(piece)
            self.known += int(pc.sum(pc.greater(lengths.fill_null(0), 0)).as_py() or 0)
        if self.holds == "lists of words":
            first = next((str(" ".join(v)) for v in self.column.slice(0, 3).to_pylist() if v), "")
            self.many = True
            self.seen = pa.array([first] if first else [], pa.string())

    @property
    def distinct(self) -> int:
        """Number of distinct values counted."""
        return 0 if self.seen is None else len(self.seen)

    @property
    def few(self) -> Any:
        """The first thousand distinct values."""
        return self.seen.slice(0, 1000)

    @property
    def named_id(self) -> bool:
        """Whether the column has a name typical of ids."""
        return NAMED_ID.search(self.name.strip()) is not None

    @property
    def named_year(self) -> bool:
        """Whether the column is named as years are, and holds such numbers: consecutive ones are no id."""
        return NAMED_YEAR.search(self.name.strip()) is not None and self.low >= 1000 and self.high < 3000

    @property
    def length(self) -> float:
        """Mean number of characters per cell."""
        return self.letters / self.known

    @property
    def words(self) -> float:
        """Mean number of words per cell."""
        return self.gaps / self.known + 1

    @property
    def single_words(self) -> bool:
        """Whether cells are mostly one short word."""
        return self.words <= 1.5 and self.length <= 40

    @property
    def counted(self) -> str:
        """The number of distinct values, as text."""
        return "many" if self.many else f"{self.distinct:,}"

    def all_match(self, pattern: str, first: int = 1000) -> bool:
        """Whether the first distinct values all match a regular expression."""
        import pyarrow.compute as pc

        return bool(pc.all(pc.match_substring_regex(self.few.slice(0, first), pattern)).as_py())

    def share(self) -> float:
        """Fraction of distinct values: exact while they are few, else estimated from the first rows."""
        import pyarrow.compute as pc

        if not self.many:
            return self.distinct / self.known
        start = clean_words(self.column.slice(0, PIECE).combine_chunks()).drop_null()
        return len(pc.unique(start)) / max(len(start), 1)

    def all_differ(self) -> bool:
        """Whether no value repeats; all values are compared only if the first ones all differ."""
        import pyarrow.compute as pc

        if not self.many:
            return self.distinct == self.rows
        first = self.column.slice(0, PIECE)
        return len(pc.unique(first)) == len(first) and pc.count_distinct(self.column).as_py() == self.rows

    def telling_apart(self) -> str:
        """The kind of id that nearly all distinct words are; "" if they may be informative."""
        import pyarrow.compute as pc

        if self.known < ENOUGH_ROWS or self.share() < NEARLY_ALL:
            return ""
        if self.gaps == 0 and NAMED_LOGIN.search(self.name.strip()):
            return "user names"
        few = self.few
        shares = {what: pc.mean(pc.match_substring_regex(few, like)).as_py() for what, like in TELLING_APART.items()}
        return next((what for what, share in shares.items() if share >= NEARLY_ALL), "")

    def id_of(self, kind: str) -> Facts:
        """The facts of a column that only identifies the rows."""
        return self.made(kind, "", dropped=ID)

    def left_out(self, why: str) -> Facts:
        """The facts of a column that is left out."""
        return self.made(SKIP, "", dropped=why)

    def made(
        self, kind: str, reason: str, *, dropped: str | None = None, odd: int = 0, form: str = "", nones: int = 0
    ) -> Facts:
        """The facts of a column of a kind; `nones` are cells with a word for a missing value."""
        shown = [] if self.seen is None else [str(value) for value in self.seen.slice(0, 3).to_pylist()]
        examples = tuple(" ".join(text.split())[:30] for text in shown)
        unique: int | Literal["many"] = "many" if self.many else self.distinct
        missing = self.rows - self.known + nones
        return Facts(kind, missing, unique, self.rows, examples, dropped or reason, dropped, odd, form)

"""What the columns of a table are: numbers, categories, texts, dates, images, or nothing that helps."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyformer.data.columns.convert import (
    FORMS,
    MISSING,
    PIECE,
    allowed,
    cleaned,
    date_form,
    days,
    is_words,
    numbers,
    numbers_in,
    numbers_of,
    pieces,
    strings,
)
from anyformer.data.frame import Frame
from anyformer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FORMS", "MISSING", "Facts", "date_form", "days", "look", "numbers", "strings"]

MANY = 10_000  # different values that are counted
SOUNDS = (".wav", ".flac", ".ogg", ".mp3")
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
NAMED_ID = re.compile(r"(?:^|[\s_\-.#])(?i:id|ids|uuid|guid|index|idx|key|rowid|row|unnamed: ?0)$|[a-z](?:Id|ID)$")
CODE = r"^(?:[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-fA-F]{24}|[0-9a-fA-F]{32}|[0-9a-fA-F]{40,128})$"
COMMAS = r"^[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$|^[+-]?\d+,\d+$"
ID = "a different value in every row: looks like an id"


@dataclass(frozen=True)
class Facts:
    """What one column is, and why; `reason` is a clause for people."""

    kind: str  # text, number, category, date, image, sound or skip
    missing: int
    unique: int | Literal["many"]  # exact up to 10,000
    rows: int
    examples: tuple[str, ...] = ()
    reason: str = ""
    dropped: str | None = None  # why it is left out, where it is
    odd: int = 0  # cells that do not fit the kind and are taken as missing
    form: str = ""  # how dates are written: iso, d.m.y, ...


def look(frame: Frame, asked: Mapping[str, str]) -> dict[str, Facts]:
    """What each column is; `asked` are kinds that a person gave and that win."""
    folders = sorted({str(Path(source.path).parent) for source in frame.sources if source.path})
    return {
        name: as_asked(name, seen, asked[name], frame.column(name)) if name in asked else seen
        for name, seen in ((name, Looked(name, frame.column(name), folders).facts()) for name in frame.names)
    }


def as_asked(name: str, facts: Facts, kind: str, column: Any) -> Facts:
    """The facts of a column whose kind was given."""
    known = facts.rows - facts.missing
    form, odd, good = "", 0, known
    if kind == "number":
        good = int(np.count_nonzero(~np.isnan(numbers(column))))
        odd = max(known - good, 0)
    if kind == "date":
        form = date_form(column) or ""
        good = int(np.count_nonzero(~np.isnat(days(column, form or None))))
        odd = known - good
    if known and not good:
        shown = f" like {facts.examples[0]!r}" if facts.examples else ""
        raise UserError(f"the column {name!r} holds no {kind}s but values{shown}", where=f"data.types {name}",
                        fix=f"leave out {name}={kind}")  # fmt: skip
    dropped = "left out as asked" if kind == "skip" else None
    return replace(facts, kind=kind, reason=dropped or "as asked", dropped=dropped, odd=odd, form=form)


def finite(piece: Any) -> Any:
    """Typed cells with nan as missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(piece.type):
        return pc.if_else(pc.is_finite(piece), piece, pa.scalar(None, piece.type))
    return piece


class Looked:
    """One column on its way to `Facts`, looked at a piece at a time."""

    def __init__(self, name: str, column: pa.ChunkedArray, folders: list[str]) -> None:
        self.name, self.column, self.folders, self.rows = name, column, folders, len(column)
        self.words = is_words(column.type)
        self.known = 0
        self.seen: Any = None  # the different values so far, None once they are too many
        self.many = False
        self.numeric = 0
        self.low, self.high, self.whole = np.inf, -np.inf, True
        self.maybe_number = True
        self.step_one = True
        self.last: float | None = None
        self.letters = self.gaps = 0

    def facts(self) -> Facts:
        """Look at all pieces, then decide."""
        import pyarrow as pa

        kind = self.column.type
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            return self.lists()
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_struct(kind):
            return self.made("skip", "", dropped="holds bytes, not text")
        for piece in pieces(self.column):
            self.take(piece)
        if not self.known:
            return self.made("skip", "", dropped="all missing" if self.rows else "no rows")
        if self.distinct == 1 and self.known == self.rows and self.rows > 1:
            return self.made("category", "", dropped="one value only")
        if pa.types.is_boolean(kind):
            return self.made("category", "true or false")
        if pa.types.is_temporal(kind):
            return self.dates("iso") if not pa.types.is_time(kind) else self.made("category", "times of a day")
        return self.of_words() if self.words else self.of_numbers()

    def take(self, piece: Any) -> None:
        import pyarrow.compute as pc

        values = (cleaned(piece) if self.words else finite(piece)).drop_null()
        self.known += len(values)
        self.count(values)
        if self.maybe_number and len(values):
            self.weigh(self.tried(values) if self.words else numbers_of(values))
        if self.words and len(values):
            self.letters += pc.sum(pc.utf8_length(values)).as_py()
            self.gaps += pc.sum(pc.count_substring(values, " ")).as_py()

    def count(self, values: Any) -> None:
        """Keep the different values while they are few."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.many:
            return
        new = pc.unique(values)
        self.seen = new if self.seen is None else pc.unique(pa.concat_arrays([self.seen, new]))
        if len(self.seen) > MANY:
            self.many, self.seen = True, self.seen.slice(0, MANY)

    def tried(self, words: Any) -> np.ndarray:
        """The numbers among words; a first glance saves the work where there are none."""
        if (
            np.isnan(numbers_in(words.slice(0, 100))).all()
            and np.isnan(numbers_in(words.slice(len(words) // 2, 100))).all()
        ):
            return np.zeros(0)
        found = numbers_in(words)
        return found[~np.isnan(found)]

    def weigh(self, found: np.ndarray) -> None:
        """Take numbers into account; where too many cells were none, give up."""
        self.numeric += len(found)
        if self.known - self.numeric > allowed(self.rows):
            self.maybe_number = False  # more misfits than a column of this length may have
            return
        if len(found):
            self.low, self.high = min(self.low, found.min()), max(self.high, found.max())
            self.whole = self.whole and bool((found == np.round(found)).all())
            joined = found if self.last is None else np.concatenate([[self.last], found])
            self.step_one = self.step_one and self.whole and bool((np.diff(joined) == 1).all())
            self.last = found[-1]

    @property
    def distinct(self) -> int:
        return 0 if self.seen is None else len(self.seen)

    def of_numbers(self) -> Facts:
        """A column of numbers, unless they only count the rows."""
        odd = self.known - self.numeric
        named = NAMED_ID.search(self.name.strip()) is not None
        if self.whole and not odd and self.known == self.rows > 1:
            counts = self.step_one and (named or self.rows >= 20)
            if counts or (named and self.all_differ()):
                return self.made("number", "", dropped=ID)
        span = f"from {self.low:g} to {self.high:g}"
        reason = f"{'whole numbers' if self.whole else 'numbers'} {span}"
        if odd:
            reason += f"; {odd:,} cells are none and count as missing"
        return self.made("number", reason, odd=odd)

    def of_words(self) -> Facts:
        """Text cells: whatever they say."""
        import pyarrow.compute as pc

        if self.maybe_number and self.numeric:
            return self.of_numbers()
        few = self.seen.slice(0, 1000)
        first = few.slice(0, 100)
        form = date_form(self.column) if date_form(first) or self.slashes(first) else None
        if form:
            return self.dates(form)
        named = self.files(few, IMAGES, "image") or self.files(few, SOUNDS, "sound")
        if named:
            return named
        coded = pc.all(pc.match_substring_regex(few, CODE)).as_py()
        if (coded or NAMED_ID.search(self.name.strip())) and self.known == self.rows > 1 and self.all_differ():
            return self.made("category", "", dropped=ID)
        hint = ""
        if pc.all(pc.match_substring_regex(few, COMMAS)).as_py():
            hint = "; look like numbers written with commas"
        elif self.slashes(first):
            hint = "; look like dates, but day and month cannot be told apart"
        return self.category_or_text(hint)

    def slashes(self, few: Any) -> bool:
        """Whether values may be dates whose order of day and month the whole column must tell."""
        import pyarrow.compute as pc

        return bool(pc.all(pc.match_substring_regex(few, FORMS["d/m/y"])).as_py())

    def category_or_text(self, hint: str) -> Facts:
        """Few values that come again are categories; long or mostly different ones are text."""
        length, words = self.letters / self.known, self.gaps / self.known + 1
        share = self.share()
        single = words <= 1.5 and length <= 40
        counted = "many" if self.many else f"{self.distinct:,}"
        if share <= 0.5 and (share <= 0.1 or (self.distinct <= 50 and share <= 0.25) or single) and length <= 80:
            often = ", each often" if share <= 0.05 else ""
            noun = ("word" if single else "value") + ("s" if self.distinct > 1 else "")
            return self.made(
                "category",
                f"{counted} different {noun}{often}{hint}" if self.distinct > 1 else f"one {noun} or nothing{hint}",
            )
        if self.distinct <= 20 and single and share < 1:
            return self.made("category", f"{counted} different words{hint}")
        how = "mostly different" if share > 0.5 else f"{counted} different texts"
        about = f"{words:.0f} words" if words >= 1.5 else f"{length:.0f} letters"
        return self.made("text", f"{about} on average, {how}{hint}")

    def share(self) -> float:
        """Different values among all: exact while they are few, else as the first rows tell."""
        import pyarrow.compute as pc

        if not self.many:
            return self.distinct / self.known
        start = cleaned(self.column.slice(0, PIECE).combine_chunks()).drop_null()
        return len(pc.unique(start)) / max(len(start), 1)

    def all_differ(self) -> bool:
        """Whether no value comes twice; all values are looked at only where the first ones all differ."""
        import pyarrow.compute as pc

        if not self.many:
            return self.distinct == self.rows
        first = self.column.slice(0, PIECE)
        return len(pc.unique(first)) == len(first) and pc.count_distinct(self.column).as_py() == self.rows

    def dates(self, form: str) -> Facts:
        found = days(self.column, form)
        good = found[~np.isnat(found)]
        odd = self.known - len(good)
        if not len(good):
            return self.made("skip", "", dropped="all missing")
        reason = f"dates from {str(good.min())[:10]} to {str(good.max())[:10]}"
        return self.made("date", reason + (f"; {odd:,} cells are none" if odd else ""), odd=odd, form=form)

    def files(self, few: Any, endings: tuple[str, ...], kind: str) -> Facts | None:
        """Names of pictures or recordings, where at least one of the first is there."""
        names = few.slice(0, 200).to_pylist()
        if sum(name.lower().endswith(endings) for name in names) < 0.9 * len(names):
            return None
        places = [os.path.join(folder, name) for name in names[:20] for folder in (self.folders or [""])]
        if any(os.path.isfile(place) for place in places):
            return self.made(kind, f"names of {kind} files")
        return self.category_or_text(f"; names of {kind}s, none of which is there")

    def lists(self) -> Facts:
        """Lists of words count as text; lists of numbers are left out."""
        import pyarrow as pa
        import pyarrow.compute as pc

        inner = self.column.type.value_type
        for piece in pieces(self.column):
            lengths = pc.list_value_length(piece)
            self.known += int(pc.sum(pc.greater(lengths.fill_null(0), 0)).as_py() or 0)
        if not (is_words(inner) or pa.types.is_null(inner)):
            return self.made("skip", "", dropped="holds lists of numbers")
        first = next((str(" ".join(v)) for v in self.column.slice(0, 3).to_pylist() if v), "")
        self.many = True
        self.seen = pa.array([first] if first else [], pa.string())
        if not self.known:
            return self.made("skip", "", dropped="all missing")
        return self.made("text", "lists of words")

    def made(self, kind: str, reason: str, *, dropped: str | None = None, odd: int = 0, form: str = "") -> Facts:
        shown = [] if self.seen is None else [str(value) for value in self.seen.slice(0, 3).to_pylist()]
        examples = tuple(" ".join(text.split())[:30] for text in shown)
        unique: int | Literal["many"] = "many" if self.many else self.distinct
        missing = self.rows - self.known
        return Facts(kind, missing, unique, self.rows, examples, dropped or reason, dropped, odd, form)

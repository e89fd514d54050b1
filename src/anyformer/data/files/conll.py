"""Tagged words: one word with its tags per line, a blank line after each sentence (CoNLL-2003 and CoNLL-U)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from anyformer.data.files.csv_rows import Left
from anyformer.data.files.open_text import OpenedText, import_pyarrow, open_text_file
from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Format
from anyformer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

UNIVERSAL = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
BATCH = 2**14
NUMBER = re.compile(r"\d+(?:-\d+|\.\d+)?$")
# A word that begins with #, such as a hashtag, and is no comment: its last field is a span tag, or there are only two
# fields.
SIGN = re.compile(r"#\S*[ \t](?:\S+[ \t])*(?:O|[BIESLU]-\S+)$|#\S*\t\S+$|#[^\s#]\S* \S+$")
LONGEST = 100_000  # words of a sentence; longer ones mean that blank lines are missing


def read_conll(
    paths: Sequence[Path], format: Format, *, column: str | int | None = None, bad: Literal["skip", "error"] = "skip"
) -> Frame:
    """Sentences as rows with two lists, `words` and `tags`.

    `column` is the position of the tags counted from 1, from the end if negative, or a CoNLL-U name (upos, xpos,
    deprel, ...). By default: upos in CoNLL-U, else the last one. A sentence with a line of more or fewer fields than
    the others is left out.
    """
    import_pyarrow(Path(paths[0]).name if paths else "")
    import pyarrow as pa

    if not paths:
        raise UserError("no file was given", where="data", fix="name a file")
    batches: list[pa.RecordBatch] = []
    sources: list[Source] = []
    numbers: list[np.ndarray] = []
    skipped: dict[str, int] = {}
    places: dict[str, tuple[str, ...]] = {}
    before = 0
    for path in paths:
        file = open_text_file(Path(path), format)
        shape, left = ConllFields(file, column), Left(file.name, 1, "sentence", bad == "error")
        kept: list[int] = []
        pairs: list[tuple[list[str], list[str]]] = []
        total = 0
        for number, (line, sentence) in enumerate(sentences(file)):
            total = number + 1
            pair = shape.parts(sentence, line, left, number)
            if pair is not None:
                kept.append(number + before)
                pairs.append(pair)
            if len(pairs) == BATCH:
                batches.append(batch_of(pairs))
                pairs = []
        batches.append(batch_of(pairs))
        if not kept:
            what = f"none of {total:,} sentences can be used ({next(iter(left.reasons), '')})"
            details = [place for some in left.places.values() for place in some]
            raise UserError(what, where=file.name, fix="give a word and its tag a line", details=details)
        notes = (*file.notes, shape.note)
        sources.append(Source(file.name, str(file.path), total, file.bytes, file.sha256, "sentence", 1, notes))
        numbers.append(np.asarray(kept, np.int64))
        before += total
        for reason, count in left.reasons.items():
            skipped[reason] = skipped.get(reason, 0) + count
            places[reason] = (*places.get(reason, ()), *left.places[reason])[:5]
    kept_numbers = np.concatenate(numbers) if skipped else None
    return Frame(pa.Table.from_batches(batches), tuple(sources), skipped, kept_numbers, places)


def read_words(paths: Sequence[Path], format: Format) -> Frame:
    """Sentences without tags: one word per line with blank lines between sentences, or one sentence per line."""
    import pyarrow as pa

    rows: list[list[str]] = []
    sources = []
    for path in paths:
        file = open_text_file(Path(path), format)
        groups = [group for _, group in sentences(file)]
        lines = [line for group in groups for line in group]
        if len(groups) > 1 and all(len(line.split()) == 1 for line in lines):
            found = [[line.strip() for line in group] for group in groups]
        else:
            found = [line.split() for line in lines]
        if not found:
            raise UserError("no sentences", where=file.name, fix="give one sentence a line")
        sources.append(Source(file.name, str(path), len(found), file.bytes, file.sha256, "sentence", 1, file.notes))
        rows += found
    return Frame(pa.table({"words": pa.array(rows, pa.list_(pa.string()))}), tuple(sources))


def batch_of(pairs: list[tuple[list[str], list[str]]]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [pa.array([pair[at] for pair in pairs], pa.list_(pa.string())) for at in (0, 1)]
    return pa.RecordBatch.from_arrays(columns, names=["words", "tags"])


def sentences(file: OpenedText) -> Iterator[tuple[int, list[str]]]:
    """Groups of lines between blank ones, with the number of the first; comments and document marks are skipped."""
    group: list[str] = []
    begins = 0
    for number, line in enumerate(file.lines(), 1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            if group:
                yield begins, group
            group = []
        elif not line.startswith("#") or SIGN.match(line):
            begins = begins if group else number
            group.append(line)
            if len(group) > LONGEST:
                what = f"a sentence of more than {LONGEST:,} words"
                raise UserError(what, where=f"{file.name} line {begins}", fix="put blank lines between sentences")
    if group:
        yield begins, group


class ConllFields:
    """The number of fields per line, and the positions of word and tag."""

    def __init__(self, file: OpenedText, column: str | int | None) -> None:
        self.name = file.name
        first = next((group for _, group in sentences(file)), None)
        if first is None:
            raise UserError("no sentences", where=file.name, fix="give a word and its tag a line")
        self.tabs = all("\t" in line for line in first)
        widths = [len(self.split(line)) for line in first]
        self.width = max(set(widths), key=widths.count)
        self.universal = self.tabs and self.width == 10 and all(NUMBER.match(self.split(line)[0]) for line in first)
        if self.width < 2:
            raise UserError("lines hold no tag beside the word", where=file.name, fix="give a word and its tag a line")
        self.word = 1 if self.universal else 0
        self.tag = self.place(column)

    @property
    def note(self) -> str:
        """The column that was used."""
        named = UNIVERSAL[self.tag] if self.universal else f"column {self.tag + 1} of {self.width}"
        return f"{'CoNLL-U' if self.universal else 'CoNLL'}, tags from {named}"

    def place(self, column: str | int | None) -> int:
        if column is None:
            return UNIVERSAL.index("upos") if self.universal else self.width - 1
        if isinstance(column, str) and not column.lstrip("-").isdigit():
            if not self.universal:
                what = f"columns have no names here, {column[:40]!r} neither"
                raise UserError(what, where=self.name, fix=f"give a number from 1 to {self.width}")
            if column.lower() not in UNIVERSAL:
                fix = did_you_mean(column.lower(), UNIVERSAL)
                raise UserError(f"unknown column {column[:40]!r}", where=self.name, fix=fix)
            return UNIVERSAL.index(column.lower())
        number = int(column)
        at = number - 1 if number > 0 else self.width + number
        if not 0 <= at < self.width or number == 0:
            what = f"column {number} is out of range, lines have {self.width}"
            raise UserError(what, where=self.name, fix=f"give a number from 1 to {self.width}")
        return at

    def split(self, line: str) -> list[str]:
        return line.split("\t") if self.tabs else line.split()

    def parts(self, lines: list[str], begins: int, left: Left, number: int) -> tuple[list[str], list[str]] | None:
        """Words and tags of a sentence, or None if it is left out."""
        words, tags = [], []
        for at, line in enumerate(lines):
            fields = self.split(line)
            if len(fields) != self.width:
                what = f"line {begins + at} has {len(fields)} fields where {self.width} are expected"
                left.add(number, "a line with too few or too many fields", what)
                return None
            if self.universal and not fields[0].isdigit():
                if NUMBER.match(fields[0]):
                    continue  # ranges (3-4) and empty nodes (8.1) are not words
                left.add(number, "a line without a word number", f"line {begins + at} begins with {fields[0][:20]!r}")
                return None
            words.append(fields[self.word])
            tags.append(fields[self.tag])
        if not all(tags) or not words:
            left.add(
                number, "a word without a tag", f"a word without a tag in lines {begins} to {begins + len(lines) - 1}"
            )
            return None
        return words, tags


def conll_text(sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> str:
    """Words and tags, one tab-separated pair per line, a blank line after each sentence; tabs and line ends inside a
    word become spaces."""
    lines: list[str] = []
    for at, (words, marks) in enumerate(zip(sentences, tags, strict=True)):
        if len(words) != len(marks):
            what = f"{len(words)} words but {len(marks)} tags"
            raise UserError(what, where=f"sentence {at + 1}", fix="give one tag a word")
        for word, mark in zip(words, marks, strict=True):
            lines.append("\t".join(re.sub(r"[\t\r\n]", " ", str(text)) for text in (word, mark)))
        lines.append("")
    return "".join(f"{line}\n" for line in lines)

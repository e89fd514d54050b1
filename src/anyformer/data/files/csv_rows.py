"""Rows of delimited text, read in blocks."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from anyformer.data.files.csv_dialect import (
    NO_QUOTES,
    SAMPLE,
    CsvLayout,
    blank_fields,
    keeps_quotes,
    layout_of,
    long_fields,
)
from anyformer.data.files.open_text import OpenedText
from anyformer.data.files.spool import Spool
from anyformer.data.settings import Format
from anyformer.errors import UserError
from anyformer.safe_files import short

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 2**22
LARGEST = 2**30  # a longer row is an error
BATCH = 2**15  # rows of a block read by the standard library
SHOWN = 5


@dataclass
class Left:
    """Rows that are left out: why, how many, and where. With `strict` the first one is an error."""

    name: str
    first: int  # number of the file's first row
    unit: str = "row"
    strict: bool = False
    numbers: list[int] = field(default_factory=list)  # counted from 0
    reasons: dict[str, int] = field(default_factory=dict)
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, number: int, reason: str, detail: str = "", line: int | None = None) -> None:
        """Record a row that is left out; `line` is its line, if known."""
        place = f"{self.name} {self.unit} {number + self.first}" if line is None else f"{self.name} line {line}"
        if self.strict:
            raise UserError(detail or reason, where=place, fix="fix or remove it, or leave out bad=error")
        self.numbers.append(number)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if len(self.places.get(reason, ())) < SHOWN:
            self.places[reason] = (*self.places.get(reason, ()), place)


class CsvTable:
    """One delimited text file, ready to be read."""

    def __init__(self, file: OpenedText, format: Format, *, strict: bool) -> None:
        self.file, self.strict = file, strict
        self.layout = layout_of(file, format)
        self.left = self.fresh()

    def fresh(self) -> Left:
        """An empty record of left-out rows."""
        first = 1 + (self.layout.above + 1 if self.layout.header else 0)
        return Left(self.file.name, first, "line" if self.layout.labelled else "row", self.strict)

    def into(self, spool: Callable[[], Spool]) -> pa.Table:
        """All its rows, every cell as its text. A wrong layout is corrected by reading again."""
        size = BLOCK
        while True:
            self.left, target = self.fresh(), spool()
            try:
                joined = False
                for batch in self.batches(size):
                    target.add(batch)
                    joined = joined or self.runs_together(batch)
                if joined and self.late_quotes():
                    target.drop()
                    continue
                return target.table()
            except Straddles:
                target.drop()
                size *= 8
                if size > LARGEST:
                    what = f"a row is longer than {LARGEST // 2**20} MB"
                    raise UserError(what, where=self.file.name, fix="look for a quote that is not closed") from None
            except BaseException:
                target.drop()
                raise

    def batches(self, size: int) -> Iterator[pa.RecordBatch]:
        """Its rows in blocks."""
        if self.layout.labelled:
            return read_labelled_lines(self.file, self.left)
        if self.layout.blanks:
            return read_blank_rows(self.file, self.layout, self.left)
        if self.layout.spaces and self.layout.quoted:
            return by_hand(self.file, self.layout, self.left)
        return arrow_batches(self.file, self.layout, self.left, size)

    def runs_together(self, batch: pa.RecordBatch) -> bool:
        """Whether a cell contains a line end and a delimiter: a stray quote may have merged rows."""
        import pyarrow.compute as pc

        if not self.layout.quoted or self.file.size <= SAMPLE:  # else all quotes have been checked
            return False
        for column in batch.columns:
            ends = pc.match_substring(column, "\n")
            if pc.any(ends).as_py() and pc.any(pc.match_substring(column.filter(ends), self.layout.delimiter)).as_py():
                return True
        return False

    def late_quotes(self) -> bool:
        """Whether quotes turn out to be literal in the whole file; the layout is then changed."""
        if keeps_quotes(self.file.lines, self.layout.delimiter, whole=True, name=self.file.name):
            return False
        self.layout = replace(self.layout, quoted=False, notes=(*self.layout.notes, NO_QUOTES))
        return True


class Straddles(Exception):
    """A row did not fit into a block."""


def arrow_batches(file: OpenedText, layout: CsvLayout, left: Left, size: int) -> Iterator[pa.RecordBatch]:
    """Rows read by pyarrow, in one thread, since only then does it report the rows it left out."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    width = len(layout.names)
    late: list[Any] = []
    names = [f"{at}" for at in range(width)]

    def bad(row: Any) -> str:
        late.append((row.number - 1, row.actual_columns))
        return "skip"

    options = {
        "read_options": pa.csv.ReadOptions(column_names=names, block_size=size, use_threads=False),
        "parse_options": pa.csv.ParseOptions(
            delimiter=layout.delimiter, quote_char='"' if layout.quoted else False, double_quote=layout.quoted,
            newlines_in_values=layout.quoted, ignore_empty_lines=True, invalid_row_handler=bad,
        ),
        "convert_options": pa.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=[], strings_can_be_null=False, check_utf8=False
        ),
    }  # fmt: skip
    schema = pa.schema([pa.field(name, pa.string()) for name in layout.names])
    with rows_of(file, layout) as stream:
        try:
            reader = pa.csv.open_csv(pa.PythonFile(stream, mode="r"), **options)
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
                finally:
                    settle(late, left, width)
                columns = [pc.ascii_ltrim(c, " ") if layout.spaces else c for c in batch.columns]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
        except pa.ArrowInvalid as error:
            settle(late, left, width)
            if "straddling" in str(error):
                raise Straddles from None
            if "Empty CSV" in str(error):
                return
            raise UserError(
                f"cannot be read as a table ({short(error)})", where=file.name, fix="fix the file"
            ) from None


def settle(late: list[Any], left: Left, width: int) -> None:
    """Record the rows that pyarrow left out."""
    waiting, late[:] = list(late), []
    for number, found in waiting:
        reason = "too few fields" if found < width else "too many fields"
        left.add(number, reason, f"{found} fields where {width} are expected")


def rows_of(file: OpenedText, layout: CsvLayout) -> BinaryIO:
    """The file's bytes from the first row of values on."""
    stream = file.stream()
    if layout.returns:
        stream = cast(BinaryIO, io.BufferedReader(Returns(stream), 2**16))
    for _ in range(layout.lead):
        stream.readline()
    return stream


class Returns(io.RawIOBase):
    """A byte stream with carriage returns converted to line ends."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self.raw.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        if not self.closed:
            self.raw.close()
        super().close()


def by_hand(file: OpenedText, layout: CsvLayout, left: Left) -> Iterator[pa.RecordBatch]:
    """Rows read by the standard library, for what pyarrow lacks: a space between a delimiter and a quote."""
    width = len(layout.names)
    kept: list[list[str]] = []
    with rows_of(file, layout) as stream, long_fields():
        text = io.TextIOWrapper(stream, "utf-8", newline="")
        reader = csv.reader(text, delimiter=layout.delimiter, skipinitialspace=True)
        number = 0
        try:
            for row in reader:
                if not row:
                    continue
                if len(row) == width:
                    kept.append(row)
                else:
                    reason = "too few fields" if len(row) < width else "too many fields"
                    left.add(number, reason, f"{len(row)} fields where {width} are expected")
                number += 1
                if len(kept) == BATCH:
                    yield batch_of(layout.names, kept)
                    kept = []
        except csv.Error as error:
            where = f"{file.name} row {number + left.first}"
            raise UserError(f"cannot be read ({short(error)})", where=where, fix="fix that row") from None
    if kept:
        yield batch_of(layout.names, kept)


def batch_of(names: tuple[str, ...], rows: list[list[str]]) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [pa.array([row[at] for row in rows], pa.string()) for at in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def read_blank_rows(file: OpenedText, layout: CsvLayout, left: Left) -> Iterator[pa.RecordBatch]:
    """Rows with fields separated by any number of spaces and tabs."""
    width, kept = len(layout.names), list[list[str]]()
    lines = ((at, line) for at, line in enumerate(file.lines(), 1) if line.strip())
    for number, (at, line) in enumerate(islice(lines, layout.above + layout.header, None)):
        fields = blank_fields(line)
        if len(fields) == width:
            kept.append(fields)
        else:
            reason = "too few fields" if len(fields) < width else "too many fields"
            left.add(number, reason, f"{len(fields)} fields where {width} are expected", at)
        if len(kept) == BATCH:
            yield batch_of(layout.names, kept)
            kept = []
    if kept:
        yield batch_of(layout.names, kept)


def read_labelled_lines(file: OpenedText, left: Left) -> Iterator[pa.RecordBatch]:
    """Lines like `label text` as two columns."""
    kept: list[list[str]] = []
    number = 0
    for at, line in enumerate(file.lines(), 1):
        if not line.strip():
            continue
        if at > number + 1:
            left.unit = "row"  # blank lines in between: the row count does not give the line
        label, space, text = line.partition(" ")
        if space and text.strip():
            kept.append([label.removeprefix("__label__"), text])
        else:
            left.add(number, "no text after the label", "a label without a text", at)
        number += 1
        if len(kept) == BATCH:
            yield batch_of(("label", "text"), kept)
            kept = []
    if kept:
        yield batch_of(("label", "text"), kept)

"""The layout of a delimited text file: delimiter, quotes, header; detected from its beginning."""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from anyformer.data.columns.convert import DAY_FORMS, MISSING, NUMBER
from anyformer.data.files.open_text import OpenedText
from anyformer.data.settings import Format
from anyformer.errors import UserError

SAMPLE = 2**22  # bytes examined
ROWS = 1000  # rows among them that decide on delimiter and header
DELIMITERS = ("\t", ";", "|", ",")  # the comma is last: it also occurs in text and numbers
SPELLED = {"\\t": "\t", "tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
NO_QUOTES = "quotes are part of the text"
NONE = "\x1f"  # no delimiter: a character that does not occur in texts
NAMES = {"\t": "tab", " ": "space", NONE: "none"}
LABEL = re.compile(r"^(?:\d{1,3}|__label__\S+|[A-Z]{2,}[A-Z_]*(?::\S+)?)$")
BLANK_FIELD = re.compile(r'"([^"]*)"|(\S+)')
FEWEST_BLANK = 5  # lines of a table separated by white space
LABELS, LABELLED = 100, 50  # maximum labels and minimum lines for lines like `label text`


@dataclass(frozen=True)
class CsvLayout:
    """Everything needed to read a delimited text file."""

    delimiter: str
    quoted: bool
    names: tuple[str, ...]
    header: bool
    lead: int = 0  # lines before the first row of values
    above: int = 0  # lines above the header
    spaces: bool = False  # a space follows every delimiter and is not part of the value
    returns: bool = False  # lines end in \r alone, as on old Macs
    labelled: bool = False  # lines are `label text`
    blanks: bool = False  # fields are separated by any number of spaces or tabs
    notes: tuple[str, ...] = ()


def layout_of(file: OpenedText, format: Format) -> CsvLayout:
    """Detect the layout of a file; settings in `format` take precedence."""
    head = file.head(SAMPLE)
    whole = len(head) < SAMPLE
    text = head.decode("utf-8", "ignore")
    returns = "\n" not in text and "\r" in text.rstrip("\r")
    lines = [line.removesuffix("\r") for line in (text.replace("\r", "\n") if returns else text).split("\n")]
    if not whole and len(lines) > 1:
        lines.pop()  # most likely an incomplete line
    given = delimiter_given(format, file.name)
    if lines[0].lstrip().lower().startswith(("<!doctype html", "<html")):
        raise UserError("looks like a web page, not a table", where=file.name, fix="download the file itself")
    full = [line for line in lines if line.strip()]
    if given is None and is_labelled(full[:ROWS]) and best_delimiter(lines)[1] < 0.98:
        return CsvLayout(
            " ", False, ("label", "text"), False, labelled=True, notes=("each line is a label and a text",)
        )
    if given is None and are_blank_rows(full[:ROWS]):
        rows = [blank_fields(line) for line in full[:ROWS]]
        layout = CsvLayout(" ", False, (), False, blanks=True)
        layout = name_columns(layout, rows, list(range(1, len(rows) + 1)), format, file)
        return replace(layout, notes=("columns separated by spaces or tabs", *layout.notes))
    delimiter = given or found_delimiter(lines, file)
    quoted = file.quotes > 0
    notes: list[str] = []
    if quoted:
        quoted = keeps_quotes(lambda: lines, delimiter, whole=whole, name=file.name)
        notes += [] if quoted else [NO_QUOTES]
    layout = CsvLayout(delimiter, quoted, (), False, returns=returns)
    rows, ends = parse_lines(lines, layout)
    if sum(len(row) > 1 and all(cell[:1] in (" ", "") for cell in row[1:]) for row in rows) >= 0.95 * len(rows):
        if any(cell[:1] == " " for row in rows for cell in row[1:]):
            layout = replace(layout, spaces=True)
            rows, ends = parse_lines(lines, layout)
            notes.append("spaces after the delimiter left out")
    if returns:
        notes.append("lines end in carriage returns")
    layout = name_columns(layout, rows, ends, format, file)
    if len(layout.names) > 1 and (delimiter != "," or given is not None):
        shown = NAMES.get(delimiter, f'"{delimiter}"')
        notes.insert(0, f"delimiter {shown}")
    return replace(layout, notes=(*notes, *layout.notes))


def delimiter_given(format: Format, name: str) -> str | None:
    """The delimiter set by the user."""
    if format.delimiter is None:
        return None
    found = SPELLED.get(format.delimiter.lower(), format.delimiter)
    if len(found) != 1 or not found.isascii() or found in '"\r\n\0' or found.isalnum():
        what = f"{format.delimiter[:20]!r} is not a delimiter"
        raise UserError(what, where=f"data.format.delimiter for {name}", fix='give one character like "," or tab')
    return found


def best_delimiter(lines: Sequence[str]) -> tuple[str, float, int]:
    """The delimiter that splits most rows into equally many fields, that fraction of rows, and the number of fields."""
    best, best_key = (",", 0.0, 1), (0.0, False, 0)
    some = lines[: 2 * ROWS]
    quotes = any('"' in line for line in some)
    for delimiter in DELIMITERS:
        for quoted in (True, False) if quotes else (False,):
            rows, _ = parse_lines(some, CsvLayout(delimiter, quoted, (), False))
            widths = Counter(len(row) for row in rows)
            if not widths:
                continue
            width, count = widths.most_common(1)[0]
            share = count / len(rows)
            key = (round(share, 2), len(rows[0]) == width, quoted)
            if width > 1 and key > best_key and (best[0] != delimiter or key[:2] > best_key[:2]):
                best, best_key = (delimiter, share, width), key
    return best


def found_delimiter(lines: Sequence[str], file: OpenedText) -> str:
    """Detect the delimiter; a file without any has one column."""
    delimiter, share, _ = best_delimiter(lines)
    if share >= 0.6:
        return delimiter
    suffixes = [suffix.lower() for suffix in file.path.suffixes]
    first = next(line for line in lines if line.strip())
    usual = "\t" if ".tsv" in suffixes else ","
    if usual in first:
        return usual
    return NONE if not any(mark in first for mark in DELIMITERS) else delimiter


def are_blank_rows(lines: Sequence[str]) -> bool:
    """Whether lines are rows of numbers separated by any number of spaces or tabs, as in older data sets.

    No other delimiter may fit: a table with tabs may have empty cells, and text is not rows of numbers.
    """
    rows = [blank_fields(line) for line in lines]
    widths = Counter(map(len, rows))
    if len(rows) < FEWEST_BLANK or not widths:
        return False
    width, count = widths.most_common(1)[0]
    if width < 2 or count < 0.99 * len(rows):
        return False
    delimiter, share, cut = best_delimiter(lines)
    aligned = delimiter == "\t" and cut < width and sum("  " in line for line in lines) >= 0.9 * len(lines)
    if share >= count / len(rows) and not aligned:  # a tab may occur among columns aligned by spaces
        return False
    cells = [cell for row in rows[1:] for cell in row]
    return sum(is_value(cell) for cell in cells) >= 0.75 * len(cells)


def blank_fields(line: str) -> list[str]:
    """The fields of a line between spaces and tabs; a quoted field may contain them.

    >>> blank_fields('  18.0   8\t"ford torino"')
    ['18.0', '8', 'ford torino']
    """
    return [quoted or plain for quoted, plain in BLANK_FIELD.findall(line)]


def is_labelled(lines: Sequence[str]) -> bool:
    """Whether every line is one of a few labels, a space and a text: `1 a fine film` or `__label__pos A fine film`."""
    if len(lines) < LABELLED or not all(" " in line for line in lines):
        return False
    firsts = Counter(line.partition(" ")[0] for line in lines)
    if all(LABEL.match(first) for first in firsts):
        most = LABELS
    elif all(first.isalpha() and first.islower() for first in firsts):
        most = 5  # common words: sentences begin with more distinct ones
    else:
        return False
    texts = sum(len(line.split(None, 3)) >= 3 for line in lines)
    return 2 <= len(firsts) <= min(most, len(lines) // 10) and min(firsts.values()) > 1 and texts >= 0.5 * len(lines)


# ---------------------------------------------------------------- quotes


@contextmanager
def long_fields() -> Iterator[None]:
    """Allow fields of any length in the standard library's reader."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def reader_of(lines: Iterable[str], layout: CsvLayout, *, strict: bool = False) -> Iterator[list[str]]:
    """The standard library's reader for lines without line ends."""
    kept = (line + "\n" for line in lines)
    return csv.reader(
        kept, delimiter=layout.delimiter, quoting=csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE,
        quotechar='"' if layout.quoted else None, skipinitialspace=layout.spaces, strict=strict,
    )  # fmt: skip


def parse_lines(lines: Sequence[str], layout: CsvLayout, most: int = ROWS) -> tuple[list[list[str]], list[int]]:
    """The first non-blank rows, and the number of lines up to the end of each."""
    rows: list[list[str]] = []
    ends: list[int] = []
    reader = reader_of(lines, layout)
    with long_fields():
        try:
            for row in reader:
                if row and (len(row) > 1 or row[0].strip()):
                    rows.append(row)
                    ends.append(reader.line_num)  # type: ignore[attr-defined]
                if len(rows) == most:
                    break
        except csv.Error:
            pass  # errors are reported when the rows are read
    return rows, ends


def keeps_quotes(lines: Callable[[], Iterable[str]], delimiter: str, *, whole: bool, name: str) -> bool:
    """Whether quotes delimit fields; not if that would merge rows."""
    reader = reader_of(lines(), CsvLayout(delimiter, True, (), False), strict=True)
    joined = broken = unfinished = False
    begins, widths = 1, set[int]()
    with long_fields():
        try:
            for row in reader:
                joined = joined or any("\n" in cell and delimiter in cell for cell in row)
                widths.add(len(row))
                begins = reader.line_num + 1  # type: ignore[attr-defined]
        except csv.Error as error:
            unfinished = "unexpected end" in str(error)
            broken = not unfinished or whole or reader.line_num - begins > ROWS  # type: ignore[attr-defined]
    if not broken and (not joined or widths <= {0, 1}):  # one column, of cells that contain delimiters
        return True
    with_quotes, without = (good_rows(lines(), CsvLayout(delimiter, quoted, (), False)) for quoted in (True, False))
    proper, stray = quoted_fields(lines(), delimiter)
    if not broken and delimiter != "\t" and with_quotes[1] == 0:
        # Commas often occur in text, tabs hardly ever; but a text does not contain three whole rows by chance.
        return without[1] < 0 or without[0] - with_quotes[0] < 3 or proper > 0
    if with_quotes == without:
        kept = proper > 10 * stray
    else:
        kept = with_quotes > without
    if kept and unfinished and whole:
        what = f"a quote is opened in line {begins} and never closed"
        raise UserError(what, where=name, fix="close it, or remove it")
    return kept


def good_rows(lines: Iterable[str], layout: CsvLayout) -> tuple[int, int]:
    """The number of rows with the most frequent number of fields, and minus the number of the others."""
    widths: Counter[int] = Counter()
    with long_fields(), suppress(csv.Error):
        widths.update(len(row) for row in reader_of(lines, layout) if row)
    good = max((count for width, count in widths.items() if width > 1), default=0)
    return good, good - widths.total()


def quoted_fields(lines: Iterable[str], delimiter: str) -> tuple[int, int]:
    """The numbers of properly quoted fields, and of fields that begin with a stray quote."""
    proper = stray = 0
    for line in lines:
        if '"' in line:
            for field in line.split(delimiter):
                if field.startswith('"'):
                    whole = len(field) > 1 and field.endswith('"') and '"' not in field[1:-1].replace('""', "")
                    proper, stray = proper + whole, stray + (not whole)
    return proper, stray


# ---------------------------------------------------------------- names


def name_columns(
    layout: CsvLayout, rows: list[list[str]], ends: list[int], format: Format, file: OpenedText
) -> CsvLayout:
    """The layout with its column names."""
    width = Counter(len(row) for row in rows).most_common(1)[0][0]
    first = next((at for at, row in enumerate(rows[:10]) if len(row) > 1), 0)
    above = first if width > 1 and all(len(row) == 1 for row in rows[:first]) else 0
    if above and len(rows) > above and len(rows[above]) not in (width, width - 1):
        above = 0
    top, below = rows[above], rows[above + 1 :]
    header = format.header if format.header is not None else looks_like_header(*without_empty_end(top, below))
    notes: list[str] = []
    if above and header:
        notes.append(f"{above} line{'s' if above > 1 else ''} above the table left out")
    if not header:
        names = tuple(f"c{at}" for at in range(1, width + 1))
        shown = f"c1 ... c{width}" if width > 2 else " and ".join(names)
        return replace(layout, names=names, notes=(f"no header: columns are {shown}",))
    if not below:
        raise UserError("only a header, no rows", where=file.name, fix="give a table with rows below its header")
    names = tuple(name.strip() for name in top)
    usual = [row for row in below if len(row) == width]
    if len(names) == width - 1 and len(usual) >= 0.99 * len(below):
        last = all(not row[-1].strip() for row in usual)
        names = (*names, "") if last else ("", *names)
        notes.append("the last column has no name" if last else "the first column has no name")
    if not any(len(row) == len(names) for row in below):
        what = f"the header has {len(names)} names, but rows have {width} fields"
        fix = "fix the header, or give --set data.format.header=false"
        raise UserError(what, where=f"{file.name} row {above + 1}", fix=fix)
    names = tuple(name or f"c{at}" for at, name in enumerate(names, 1))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        shown = ", ".join(repr(name[:40]) for name in twice[:3]) + (" and more" if len(twice) > 3 else "")
        what = f"the column name {shown} comes twice" if len(twice) == 1 else f"column names {shown} come twice"
        raise UserError(what, where=f"{file.name} row {above + 1}", fix="rename one of them")
    return replace(layout, names=names, header=True, lead=ends[above], above=above, notes=tuple(notes))


def without_empty_end(top: list[str], below: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The rows without trailing columns that are empty in all rows, from delimiters at line ends."""
    full = next((at for at in range(len(top), 0, -1) if top[at - 1].strip()), 0)
    if full == len(top) or any(cell.strip() for row in below for cell in row[full:]):
        return top, below
    return top[:full], [row[:full] if len(row) == len(top) else row for row in below]


def looks_like_header(top: list[str], below: list[list[str]]) -> bool:
    """Whether a first row names the columns: words that are neither values nor like those below them."""
    cells = [cell.strip() for cell in top]
    if len(cells) > 2 and cells == [str(at) for at in range(len(cells))]:
        return True  # numbered columns
    if are_years(cells):
        return True
    if any(is_value(cell) for cell in cells if cell) or not any(cells):
        return False
    if sum(not cell for cell in cells) > 1 or any(cell in MISSING for cell in cells if cell):
        return False
    fitting = [row for row in below if len(row) == len(cells)][:200]
    if not fitting:
        return True
    columns = [[row[at].strip() for row in fitting] for at in range(len(cells))]
    if any(sum(is_value(cell) for cell in column) > 0.5 * len(fitting) for column in columns):
        return True
    if any(cell and cell in column for cell, column in zip(cells, columns, strict=True)):
        return False  # a name does not recur among the values
    # All are words. Names are short and no sentences, and a column of few values does not contain its own name.
    if any(len(cell) > 60 or len(cell.split()) > 5 or cell[-1:] in ".!?" for cell in cells):
        return False
    if len(fitting) >= 4 and any(len(set(column)) <= len(column) / 2 for column in columns):
        return True
    if all(len(cell.split()) <= 1 for cell in cells):
        return True
    typical = sorted(max(len(cell) for cell in row) for row in fitting)[len(fitting) // 2]
    return max(len(cell) for cell in cells) <= 0.6 * typical


def are_years(cells: list[str]) -> bool:
    """Whether the numbers among names are ascending years."""
    found = [int(cell) for cell in cells if re.fullmatch(r"(?:19|20)\d\d", cell)]
    others = [cell for cell in cells if cell and not re.fullmatch(r"(?:19|20)\d\d", cell)]
    return len(found) > 1 and found == sorted(set(found)) and bool(others) and not any(map(is_value, others))


def is_value(cell: str) -> bool:
    """Whether a cell is a number or a date."""
    return any(re.match(form, cell) for form in (NUMBER, *DAY_FORMS.values()))

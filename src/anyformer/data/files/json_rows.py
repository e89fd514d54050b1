"""Rows of JSON: one object per line, or one list of objects; parsed incrementally."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyformer.data.columns.arrow import column_of
from anyformer.data.files.csv_rows import Left
from anyformer.data.files.open_text import OpenedText
from anyformer.data.files.spool import Spool
from anyformer.data.files.squad import is_squad, squad_rows
from anyformer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 2**13  # rows per block
WHOLE = 2**29  # maximum bytes of a single object
DEPTH = 6  # nesting up to which objects become columns like a.b
BLOCK = 2**20
HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escaped surrogate, paired or not


def json_rows(file: OpenedText, left: Left, spool: Spool) -> tuple[pa.Table, tuple[str, ...]]:
    """All rows of a JSON file, in any layout, and notes on it."""
    start = file.head(BLOCK).lstrip()[:1]
    notes: tuple[str, ...] = ()
    try:
        if start == b"[" and not is_lines(file):
            rows: Iterator[Any] = of_list(file)
        elif start == b"{" and is_one_object(file):
            rows, notes = of_object(file)
        else:
            left.unit = "line"
            rows = of_lines(file)
        found: set[str] = set()
        kept: list[dict[str, Any]] = []
        for row in good(rows, left, found):
            kept.append(row)
            if len(kept) == BATCH:
                spool.add(batch_of(kept))
                kept = []
        if kept or spool.schema is None:
            spool.add(batch_of(kept))
        return spool.table(), (*notes, *sorted(found))
    except BaseException:
        spool.drop()
        raise


def good(rows: Iterator[Any], left: Left, notes: set[str]) -> Iterator[dict[str, Any]]:
    """Rows as flat objects; others, or rows with another type than the first, are left out."""
    form: type | None = None
    width = 0
    for number, row in enumerate(rows):
        line = None
        if isinstance(row, Line):
            if row.number > number + 1:
                left.unit = "row"  # blank lines in between: the row count does not give the line
            line, row = row.number, row.value
        if isinstance(row, Bad):
            left.add(number, row.reason, row.detail, line)
        elif isinstance(row, dict | list | str) and not row:
            left.add(number, "nothing in it", "an object without fields", line)
        elif not isinstance(row, dict | list | str) or form not in (None, type(row)):
            left.add(number, "not like the first row", f"{shortly(row)} is not {FORMS.get(form, FORMS[dict])}", line)
        elif isinstance(row, list) and form is list and len(row) != width:
            left.add(number, "not like the first row", f"{len(row)} values where {width} are expected", line)
        else:
            form = type(row)
            if isinstance(row, list):
                width = len(row)
                notes.add(f"no header: columns are c1 ... c{width}")
                row = {f"c{at}": value for at, value in enumerate(row, 1)}
            yield flat(row) if isinstance(row, dict) else {"text": row}


FORMS: dict[type | None, str] = {dict: "an object like {...}", list: "a list like [...]", str: "a text"}


@dataclass(frozen=True)
class Bad:
    """A line that is not valid JSON."""

    reason: str
    detail: str


@dataclass(frozen=True)
class Line:
    """The value and number of a line."""

    number: int
    value: Any


def of_lines(file: OpenedText) -> Iterator[Line]:
    """One value per line; blank lines are skipped."""
    for number, line in enumerate(file.lines(), 1):
        if line.strip():
            yield Line(number, value_of(line))


def value_of(line: str) -> Any:
    """The value of a line of JSON."""
    try:
        value = json.loads(line)
        return whole(value) if HALF.search(line) else value
    except RecursionError:
        return Bad("nested too deeply", "nested too deeply")
    except ValueError as error:
        at = f" (column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        return Bad("not JSON", f"not JSON: {describe_error(error)}{at}")


def whole(value: Any) -> Any:
    """The value, unless a string in it cannot be encoded as UTF-8: an escaped lone surrogate cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return Bad("half a character", "half a character (a surrogate without its other half)")
    return value


def of_list(file: OpenedText) -> Iterator[Any]:
    """The items of one list, without holding more than a few of them in memory."""
    decoder, decode = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8")()
    with file.stream() as stream:
        text, number, more, want = "", 0, True, BLOCK
        done = 0  # characters before `text`

        def grow() -> None:
            nonlocal text, more, want
            block = stream.read(want)
            more = bool(block)
            text += decode.decode(block, not more)
            want = min(want * 2, 2**26)  # so that a long item is not parsed from its start too often

        grow()
        at = len(text) - len(text.lstrip()) + 1
        while True:
            at = skip(text, at)
            if at >= len(text):
                if not more:
                    raise broken_line_error(file, number, "the list is not closed", done + at)
                text, done, at = text[at:], done + at, 0
                grow()
                continue
            if text[at] == "]":
                rest = skip(text, at + 1)
                if text[rest:].strip():
                    raise broken_line_error(file, number, "something follows the list", done + rest)
                return
            if number and text[at] == ",":
                at += 1
                continue
            try:
                value, end = decoder.raw_decode(text, at)
                if end == len(text) and more:  # a number may continue
                    raise json.JSONDecodeError("more", text, end)
            except RecursionError:
                raise broken_line_error(file, number, "nested too deeply", done + at) from None
            except ValueError as error:
                if more:
                    text, done, at = text[at:], done + at, 0
                    grow()
                    continue
                spot = error.pos if isinstance(error, json.JSONDecodeError) else at
                raise broken_line_error(file, number, f"not JSON: {describe_error(error)}", done + spot) from None
            want = BLOCK
            yield whole(value) if HALF.search(text, at, end) else value
            number, at = number + 1, end


def skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def broken_line_error(file: OpenedText, number: int, what: str, at: int) -> UserError:
    return UserError(f"{what} (character {at:,})", where=f"{file.name} row {number + 1}", fix="fix the file")


def is_lines(file: OpenedText) -> bool:
    """Whether a file whose lines begin with [ has one list per line, by its suffix."""
    if not {".jsonl", ".ndjson"} & {suffix.lower() for suffix in file.path.suffixes}:
        return False
    try:
        first = json.loads(next(line for line in file.lines() if line.strip()))
    except (ValueError, RecursionError):
        return False
    return not any(isinstance(item, dict) for item in first)


def is_one_object(file: OpenedText) -> bool:
    """Whether the file is a single object, rather than one per line."""
    first = next(line for line in file.lines() if line.strip())
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        second = first.rstrip().endswith("}") and file.newlines > 1
        return not second and ".jsonl" not in file.path.suffixes and ".ndjson" not in file.path.suffixes
    return sum(1 for line, _ in zip((x for x in file.lines() if x.strip()), range(2), strict=False)) == 1


def of_object(file: OpenedText) -> tuple[Iterator[Any], tuple[str, ...]]:
    """A single object: columns by name, rows under a name, SQuAD questions, or a single row."""
    if file.size > WHOLE:
        raise UserError("one JSON object too large to read", where=file.name, fix="write one object a line (.jsonl)")
    try:
        with file.stream() as stream:
            found = json.loads(stream.read().decode("utf-8"))
    except RecursionError:
        raise UserError("nested too deeply", where=file.name, fix="write one object a line (.jsonl)") from None
    except ValueError as error:
        at = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"not JSON: {describe_error(error)}{at}", where=file.name, fix="fix the file") from None
    if isinstance(whole(found), Bad):
        raise UserError("half a character (a surrogate without its other half)", where=file.name, fix="fix the file")
    if is_squad(found):
        return squad_rows(found), ("SQuAD",)
    lists = {name: value for name, value in found.items() if isinstance(value, list)}
    if lists and len(lists) == len(found):
        lengths = {name: len(value) for name, value in lists.items()}
        if len(lists) == 1 and all(isinstance(row, dict) for row in next(iter(lists.values()))):
            name = next(iter(lists))
            return iter(lists[name]), (f"rows under {name[:40]!r}",)
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name[:30]} {count}" for name, count in list(lengths.items())[:4])
            raise UserError(f"columns of different lengths ({shown})", where=file.name, fix="make them equally long")
        return (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)), ("columns by name",)
    inner = {name: rows for name, rows in lists.items() if rows and all(isinstance(row, dict) for row in rows)}
    if len(inner) == 1:
        name = next(iter(inner))
        return iter(inner[name]), (f"rows under {name[:40]!r}",)
    if file.name.lower().endswith("json") and not inner:
        raise UserError(
            "one JSON object, not a list of rows", where=file.name, fix="write [{...}, {...}] or one object a line"
        )
    return iter([found]), ()


def flat(row: dict[str, Any], depth: int = DEPTH) -> dict[str, Any]:
    """Nested objects as columns of their own: {"a": {"b": 1}} has the column a.b."""
    if not any(isinstance(value, dict) for value in row.values()):
        return row
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict) and value and depth:
            found |= {f"{name}.{inner}": cell for inner, cell in flat(value, depth - 1).items()}
        else:
            found[name] = value
    return found


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as a block; absent fields are missing values."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [column_of([row.get(name) for row in rows]) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


def describe_error(error: ValueError) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else "a number too long"


def shortly(value: Any) -> str:
    return json.dumps(value)[:30]

"""ARFF files, the format of Weka and OpenML: names and types of the columns, then comma-separated rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anyformer.data.files.csv_rows import BATCH, Left, batch_of
from anyformer.data.files.open_text import OpenedText
from anyformer.data.files.spool import Spool
from anyformer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

WORD = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|"""
ATTRIBUTE = re.compile(rf"@attribute\s+({WORD}[^\s'\"]+)\s+(.+)$", re.IGNORECASE)
CELL = re.compile(rf"\s*({WORD}[^,'\"]*)\s*(,|$)")
KINDS = ("numeric", "real", "integer", "string", "date", "{")  # column types; relational ones are not supported


def is_arff(head: bytes) -> bool:
    """Whether a file is ARFF: `@relation` after comments.

    >>> is_arff(b"% a comment\\n\\n@RELATION iris\\n"), is_arff(b"@someone said\\n")
    (True, False)
    """
    lines = (line.strip().lower() for line in head.decode("utf-8", "replace").split("\n"))
    return next((line for line in lines if line and not line.startswith("%")), "").startswith("@relation")


def arff_rows(file: OpenedText, left: Left, spool: Spool) -> tuple[pa.Table, tuple[str, ...]]:
    """All rows, every cell as its text and `?` as missing; and notes."""
    lines = enumerate(file.lines(), 1)
    names = read_attributes(file, lines)
    try:
        kept: list[list[str]] = []
        number = 0
        for at, line in lines:
            if not line.strip() or line.lstrip().startswith("%"):
                continue
            if line.lstrip().startswith("{"):
                raise UserError("sparse rows like {0 1, 3 5} are not read", where=f"{file.name} line {at}",
                                fix="write the rows in full: every value, separated by commas")  # fmt: skip
            cells = cells_of(line)
            if cells is None or len(cells) != len(names):
                found = "a quote that is not closed" if cells is None else "too few fields"
                found = "too many fields" if cells is not None and len(cells) > len(names) else found
                left.add(number, found, f"{found}: {len(names)} are expected", at)
            else:
                kept.append(cells)
            number += 1
            if len(kept) == BATCH:
                spool.add(batch_of(names, kept))
                kept = []
        if kept or spool.schema is None:
            spool.add(batch_of(names, kept))
        return spool.table(), ("ARFF",)
    except BaseException:
        spool.drop()
        raise


def read_attributes(file: OpenedText, lines: Iterator[tuple[int, str]]) -> tuple[str, ...]:
    """The names of the columns, up to the line `@data`."""
    names: list[str] = []
    for at, line in lines:
        said = line.strip()
        if said.lower().startswith("@data"):
            if not names:
                break
            return tuple(names)
        if said.lower().startswith("@attribute"):
            found = ATTRIBUTE.match(said)
            if found is None or not found.group(2).strip().lower().startswith(KINDS):
                raise UserError(f"{said[:60]!r} is no column that can be read", where=f"{file.name} line {at}",
                                fix="write @attribute NAME numeric, string, date or {a,b}")  # fmt: skip
            names.append(unquoted(found.group(1)))
    raise UserError("no @attribute and @data lines", where=file.name, fix="give a whole ARFF file, or a CSV table")


def cells_of(line: str) -> list[str] | None:
    """The cells of a row, "" if missing; None if a quote is not closed.

    >>> cells_of("5.1, 'a, b',?,\\"it''s\\"")
    ['5.1', 'a, b', '', "it''s"]
    """
    cells: list[str] = []
    at = 0
    while True:
        found = CELL.match(line, at)
        if found is None:
            return None
        cells.append("" if found.group(1).strip() == "?" else unquoted(found.group(1)))
        if not found.group(2):
            return cells
        at = found.end()


def unquoted(word: str) -> str:
    word = word.strip()
    if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return word

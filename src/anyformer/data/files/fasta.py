"""FASTA: proteins, DNA and RNA as rows of an id and a sequence, read residue by residue (letter by letter)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyformer.data.columns.cells import texts
from anyformer.data.files.open_text import OpenedText, import_pyarrow, open_text_file
from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Data, Format
from anyformer.errors import UserError

COLUMN = "sequence"
STRANGE = re.compile(r"[^A-Z*.\-]")  # letters, the stop sign, and two kinds of gaps
EMPTY, ODD = "a record without residues", "a record with a sign that is not a residue"


def read_fasta(paths: Sequence[Path], format: Format, *, bad: Literal["skip", "error"] = "skip") -> Frame:
    """Records of files as rows `id`, `sequence`; an unusable one is left out and counted, or an error."""
    import_pyarrow(Path(paths[0]).name if paths else "")
    import pyarrow as pa

    ids: list[str] = []
    sequences: list[str] = []
    numbers: list[int] = []
    sources: list[Source] = []
    skipped: dict[str, int] = {}
    places: dict[str, tuple[str, ...]] = {}
    before = 0
    for path in paths:
        file = open_text_file(Path(path), format)
        total = 0
        for line, name, parts in records(file):
            sequence = "".join(parts).upper()
            reason = problem(sequence)
            if reason is None:
                ids.append(name)
                sequences.append(sequence)
                numbers.append(before + total)
            else:
                place = f"{file.name} line {line}"
                if bad == "error":
                    raise UserError(
                        describe_reason(reason, sequence), where=place, fix="repair the record, or use data.bad=skip"
                    )
                skipped[reason] = skipped.get(reason, 0) + 1
                places[reason] = (*places.get(reason, ()), place)[:5]
            total += 1
        sources.append(Source(file.name, str(path), total, file.bytes, file.sha256, "record", 1, file.notes))
        before += total
    if not ids:
        worst = max(skipped, key=lambda reason: skipped[reason], default=None)
        where = places[worst][0] if worst else sources[0].name if sources else "data"
        raise UserError(f"nothing but {worst}" if worst else "no record in it", where=where,
                        fix="give records like >name, and letters below")  # fmt: skip
    table = pa.table({"id": pa.array(ids), COLUMN: pa.array(sequences)})
    return Frame(table, tuple(sources), skipped, np.array(numbers), places)


def records(file: OpenedText) -> Iterator[tuple[int, str, list[str]]]:
    """Every record: the line number of its header, its id, and the lines below."""
    at, name = 0, ""
    parts: list[str] = []
    for number, line in enumerate(file.lines(), 1):
        line = line.strip()
        if line.startswith(">"):
            if at:
                yield at, name, parts
            at, name, parts = number, (line[1:].split(None, 1) or [f"record {number}"])[0], []
        elif line and not line.startswith(";"):
            if not at:
                raise UserError("residues before the first header", where=f"{file.name} line {number}",
                                fix="begin each record with a line like >name")  # fmt: skip
            parts.append("".join(line.split()))
    if at:
        yield at, name, parts


def problem(sequence: str) -> str | None:
    """Why a sequence is unusable, or None."""
    if not sequence:
        return EMPTY
    return ODD if STRANGE.search(sequence) else None


def describe_reason(reason: str, sequence: str) -> str:
    found = STRANGE.search(sequence)
    return reason if found is None else f"{reason}: {found[0]!r} at residue {found.start() + 1}"


def join_labels(frame: Frame, table: Frame) -> Frame:
    """The records joined with a table, by the table's column of their ids."""
    import pyarrow as pa

    ids = texts(frame.column("id"))
    wanted = set(ids)
    shares = {name: sum(cell in wanted for cell in texts(table.column(name))) for name in table.names}
    key = max(shares, key=lambda name: shares[name])
    where = table.sources[0].name if table.sources else "labels"
    if not shares[key]:
        raise UserError(f"no column holds the ids of the records, such as {ids[0][:40]!r}", where=where,
                        fix="give a table with a column of ids")  # fmt: skip
    rows: dict[str, int] = {}
    for row, cell in enumerate(texts(table.column(key))):
        if cell in wanted and cell in rows:
            raise UserError(f"the id {cell[:40]!r} comes twice", where=table.place(row), fix="keep one of the rows")
        rows[str(cell)] = row
    order = pa.array([rows.get(name) for name in ids], pa.int64())
    made = frame.table
    for name in table.names:
        if name != key:
            made = made.append_column(f"{name}_" if name in frame.names else name, table.column(name).take(order))
    return replace(frame, table=made)


def read_labelled(paths: Sequence[Path], tables: Sequence[Path], settings: Data, cache: Path) -> Frame:
    """FASTA files, joined by id with the tables given beside them."""
    from anyformer.data.files.tables import read

    frame = read_fasta(paths, settings.format, bad=settings.bad)
    return join_labels(frame, read(tables, settings.format, bad=settings.bad, cache=cache)) if tables else frame


def by_residue(settings: Data, *, alone: bool) -> Data:
    """Settings that read sequences letter by letter, unless another tokenizer is requested."""
    changes: dict[str, Any] = {}
    if settings.tokenizer.kind == "auto" and settings.tokenizer.folder is None:
        changes["tokenizer"] = settings.tokenizer.replace(kind="char")
    if alone:
        changes["inputs"] = settings.inputs or (COLUMN,)
    elif COLUMN not in settings.kinds():
        changes["types"] = (*(settings.types or ()), f"{COLUMN}=text")
    return settings.replace(**changes)

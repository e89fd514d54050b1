"""Reading tables: delimited text, JSON, Parquet and Arrow files, one or several, into one `Frame`.

Unusable rows are left out and counted: used and left-out rows together are all rows of the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from anyformer.data.columns.arrow import as_type, common_type, plain_table
from anyformer.data.files.arff import arff_rows, is_arff
from anyformer.data.files.csv_rows import CsvTable, Left
from anyformer.data.files.json_rows import json_rows
from anyformer.data.files.open_text import OpenedText, import_pyarrow, open_text_file, present
from anyformer.data.files.path_kinds import kind_of_path
from anyformer.data.files.spool import LARGE, Spool
from anyformer.data.frame import Frame, Source
from anyformer.data.in_memory import frame_of
from anyformer.data.settings import Format
from anyformer.errors import UserError
from anyformer.safe_files import digest, short

if TYPE_CHECKING:
    import pyarrow as pa

MOST_COLUMNS = 20_000  # each is a token of the model, and a mapped file during preparation
LONGEST_NAME = 1000  # characters of a column name
LONGEST_CELL = 2**22  # bytes of one cell, more than the longest novels; its tokens take a hundred times as much memory

__all__ = ["frame_of", "kind_of_path", "read"]


@dataclass
class FileRows:
    """The rows of one file."""

    table: pa.Table
    source: Source
    left: Left


def read(
    paths: Sequence[Path], format: Format, *, bad: Literal["skip", "error"] = "skip", cache: Path | None = None
) -> Frame:
    """Read files with the same columns as one table. Large ones are cached in `cache` and memory-mapped."""
    if not paths:
        raise UserError("no file was given", where="data", fix="name a file")
    import_pyarrow(Path(paths[0]).name)
    parts = [read_one(Path(path), format, bad == "error", cache) for path in paths]
    for part in parts:
        check_names(part.table.column_names, part.source.name)
        check_cells(part)
    return join_files(parts)


def check_names(names: Sequence[str], where: str) -> None:
    """Raise an error if a table is implausibly wide, before its rows are read."""
    if len(names) > MOST_COLUMNS:
        what = f"{len(names):,} columns; at most {MOST_COLUMNS:,} can be used"
        raise UserError(what, where=where, fix="leave out columns, or give it as text")
    long = next((name for name in names if len(name) > LONGEST_NAME), None)
    if long is not None:
        what = f"a column name of {len(long):,} characters ({long[:20]!r} ...)"
        raise UserError(what, where=where, fix="give the columns short names")


def check_cells(part: FileRows) -> None:
    """Raise an error that reports the first cell that is implausibly long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, column in zip(part.table.column_names, part.table.columns, strict=True):
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            continue
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        if longest > LONGEST_CELL:
            row = pc.index(pc.binary_length(column), longest).as_py()
            frame = Frame(part.table, (part.source,), numbers=kept_numbers(part))
            what = f"{name[:40]!r} holds {longest:,} bytes, more than the {LONGEST_CELL:,} of a cell"
            raise UserError(what, where=frame.place(row), fix="cut it into rows, or train on it as text (--task lm)")


def kept_numbers(part: FileRows) -> np.ndarray:
    """The indices of a file's rows that were kept, counted from 0."""
    kept = np.ones(part.source.rows, bool)
    kept[part.left.numbers] = False
    return np.flatnonzero(kept)


def read_one(path: Path, format: Format, strict: bool, cache: Path | None) -> FileRows:
    """One file."""
    path = present(path)
    with path.open("rb") as file:
        magic = file.read(8)
    if magic[:4] == b"PAR1" or magic[:6] == b"ARROW1" or magic[:4] == b"\xff\xff\xff\xff" or magic[:4] == b"FEA1":
        return binary(path, magic, cache)
    if path.suffix.lower() in (".parquet", ".arrow", ".feather") and path.stat().st_size:
        raise UserError(f"not a {path.suffix[1:].lower()} file (its first bytes differ)", where=path.name,
                        fix="copy it again, or name it by what it is")  # fmt: skip
    file_ = open_text_file(path, format)
    name = hashlib.sha256(f"{file_.sha256} {format.to_json()}".encode()).hexdigest()[:16]
    if is_json(file_, format):
        left = Left(path.name, 1, "row", strict)
        table, notes = json_rows(file_, left, Spool(cache, name))
    elif is_arff(file_.head(4096)):
        left = Left(path.name, 1, "row", strict)
        table, notes = arff_rows(file_, left, Spool(cache, name))
    else:
        rows = CsvTable(file_, format, strict=strict)
        check_names(rows.layout.names, path.name)
        table, left, notes = rows.into(lambda: Spool(cache, name)), rows.left, ()
        notes = rows.layout.notes
    total = table.num_rows + len(left.numbers)
    if not table.num_rows:
        reason = next(iter(left.reasons), "")
        what = f"none of {total:,} rows can be used ({reason})" if total else "no rows"
        raise UserError(what, where=path.name, fix="give a table with rows" if not total else "fix the file",
                        details=[place for places in left.places.values() for place in places])  # fmt: skip
    source = Source(
        path.name, str(path), total, file_.bytes, file_.sha256, left.unit, left.first, (*file_.notes, *notes)
    )
    return FileRows(table, source, left)


def is_json(file: OpenedText, format: Format) -> bool:
    """Whether a file is JSON: by its name, or because its first line is an object."""
    suffixes = [suffix.lower() for suffix in file.path.suffixes[-2:]]
    if any(suffix in (".jsonl", ".ndjson", ".json") for suffix in suffixes):
        return True
    if format.delimiter is not None or any(suffix in (".csv", ".tsv") for suffix in suffixes):
        return False
    head = file.head(4096).lstrip()
    return head.startswith((b'{"', b'[{"', b"[\n")) or (head.startswith(b"[") and b'{"' in head)


def binary(path: Path, magic: bytes, cache: Path | None) -> FileRows:
    """A typed file: Parquet or Arrow, memory-mapped or read group by group."""
    import pyarrow as pa

    sha, size = digest(path), path.stat().st_size
    kind = "Parquet" if magic[:4] == b"PAR1" else "Arrow"
    try:
        if kind == "Parquet":
            table = parquet(path, Spool(cache, sha[:16]), size)
        elif magic[:4] == b"FEA1":
            from pyarrow import feather

            table = feather.read_table(path)
        else:
            mapped = pa.memory_map(str(path))
            table = (
                pa.ipc.open_file(mapped).read_all() if magic[:6] == b"ARROW1" else pa.ipc.open_stream(mapped).read_all()
            )
        # Later reads trust the lengths and offsets in the file: a wrong one would read out of bounds.
        table.validate(full=True)
    except (pa.ArrowException, OSError, KeyError, ValueError, OverflowError) as error:
        raise UserError(f"a damaged {kind} file ({short(error)})", where=path.name, fix="copy it again") from None
    twice = sorted({name for name in table.column_names if table.column_names.count(name) > 1})
    if twice:
        raise UserError(f"the column name {twice[0][:40]!r} comes twice", where=path.name, fix="rename one of them")
    if not table.num_rows:
        raise UserError("no rows", where=path.name, fix="give a table with rows")
    notes = () if path.suffix.lower() in (".parquet", ".arrow", ".feather", ".ipc") else (kind,)
    source = Source(path.name, str(path), table.num_rows, size, sha, "row", 1, notes)
    try:
        return FileRows(plain_table(table), source, Left(path.name, 1))
    except (pa.ArrowException, ValueError, OverflowError) as error:  # say a date in a list beyond Python's range
        raise UserError(f"a column cannot be read ({short(error)})", where=path.name, fix="leave it out of the file"
                        ) from None  # fmt: skip


def parquet(path: Path, spool: Spool, size: int) -> pa.Table:
    """A Parquet file; a large one goes through the cache in blocks."""
    import pyarrow.parquet as pq

    if spool.path is None or size <= LARGE:
        return pq.read_table(path, memory_map=True, use_threads=True)
    file = pq.ParquetFile(path, memory_map=True)
    try:
        for batch in file.iter_batches(batch_size=2**15):
            spool.add(batch)
    except BaseException:
        spool.drop()
        raise
    return spool.table()


def join_files(parts: list[FileRows]) -> Frame:
    """The rows of several files concatenated by column name."""
    import pyarrow as pa

    first = parts[0]
    names = first.table.column_names
    tables = [first.table]
    for part in parts[1:]:
        same_columns(first, part)
        tables.append(part.table.select(names))
    if len(tables) > 1 and any(table.schema.types != tables[0].schema.types for table in tables):
        tables = same_types(parts, tables)
    skipped: dict[str, int] = {}
    places: dict[str, tuple[str, ...]] = {}
    numbers, before = [], 0
    for part in parts:
        for reason, count in part.left.reasons.items():
            skipped[reason] = skipped.get(reason, 0) + count
            places[reason] = (*places.get(reason, ()), *part.left.places[reason])[:5]
        numbers.append(kept_numbers(part) + before)
        before += part.source.rows
    places_kept = np.concatenate(numbers) if skipped else None
    table = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    return Frame(table, tuple(part.source for part in parts), skipped, places_kept, places)


def same_columns(first: FileRows, part: FileRows) -> None:
    """Raise an error that reports the difference if two files have different columns."""
    one, other = first.table.column_names, part.table.column_names
    lacks = [name for name in one if name not in other]
    extra = [name for name in other if name not in one]
    if lacks or extra:
        told = [f"lacks {lacks[0][:40]!r}{more(lacks)}"] if lacks else []
        told += [f"has {extra[0][:40]!r}{more(extra)} besides"] if extra else []
        what = f"other columns than {first.source.name[:60]}: {' and '.join(told)}"
        raise UserError(what, where=part.source.name, fix="give files with the same columns")


def more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def same_types(parts: list[FileRows], tables: list[pa.Table]) -> list[pa.Table]:
    """Tables whose columns have common types; numbers and words in the same column are an error."""
    import pyarrow as pa

    fields = []
    for at, name in enumerate(tables[0].column_names):
        kind = tables[0].schema.field(at).type
        for part, table in zip(parts, tables, strict=True):
            found = table.schema.field(at).type
            wider = common_type(kind, found)
            loose = part.source.path.lower().endswith(("json", "jsonl", "ndjson"))
            if pa.types.is_string(wider) and not loose and not (is_text(kind) and is_text(found)):
                what = f"{name[:40]!r} is {found}, but {kind} in {parts[0].source.name[:60]}"
                raise UserError(what, where=part.source.name, fix="give files with the same types")
            kind = wider
        fields.append(pa.field(name, kind))
    schema = pa.schema(fields)
    return [
        pa.table(
            [as_type(column, field.type) for column, field in zip(table.columns, schema, strict=True)], schema=schema
        )
        for table in tables
    ]


def is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind))

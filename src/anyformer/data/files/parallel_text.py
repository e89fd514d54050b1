"""Text pairs: two parallel files, or one table with two text columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyformer.data.columns.convert import strings
from anyformer.data.columns.look import look
from anyformer.data.files.csv_rows import Left
from anyformer.data.files.open_text import import_pyarrow, open_text_file
from anyformer.data.files.spool import Spool
from anyformer.data.files.tables import read
from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Format
from anyformer.errors import UserError

BATCH = 2**15
EMPTY = {1: "an empty source", 2: "an empty target", 3: "empty on both sides"}


def read_pairs(
    paths: Sequence[Path], format: Format, *, bad: Literal["skip", "error"] = "skip", cache: Path | None = None
) -> Frame:
    """Rows with the columns `source` and `target`, from two parallel files or from one table."""
    if len(paths) == 1:
        return of_table(read([Path(paths[0])], format, bad=bad, cache=cache), strict=bad == "error")
    if len(paths) != 2:
        raise UserError(f"{len(paths)} files are not a pair", where="data", fix="give two files, or one table")
    return of_files(Path(paths[0]), Path(paths[1]), format, strict=bad == "error", cache=cache)


def of_files(one: Path, other: Path, format: Format, *, strict: bool, cache: Path | None) -> Frame:
    """Line n of one file corresponds to line n of the other."""
    import_pyarrow(one.name)
    first, second = open_text_file(one, format), open_text_file(other, format)
    left = Left(first.name, 1, "line", strict)
    spool = Spool(cache, f"{first.sha256[:16]}-{second.sha256[:16]}")
    kept: list[tuple[str, str]] = []
    counts = [0, 0]
    try:
        for number, (source, target) in enumerate(zip_longest(first.lines(), second.lines())):
            counts = [counts[0] + (source is not None), counts[1] + (target is not None)]
            if source is None or target is None:
                continue  # counted to the end, so that the error can report both counts
            if counts[0] != counts[1]:
                continue
            lacks = (not source.strip()) + 2 * (not target.strip())
            if lacks:
                left.add(number, EMPTY[lacks])
                continue
            kept.append((source, target))
            if len(kept) == BATCH:
                spool.add(batch_of(kept))
                kept = []
        if counts[0] != counts[1]:
            what = f"{counts[0]:,} lines, but {counts[1]:,} in {second.name[:80]}"
            raise UserError(what, where=first.name, fix="give files whose lines belong together")
        if kept or spool.schema is None:
            spool.add(batch_of(kept))
        table = spool.table()
    except BaseException:
        spool.drop()
        raise
    if not table.num_rows:
        raise UserError("no line has text on both sides", where=first.name, fix="give files with text")
    sources = tuple(
        Source(file.name, str(file.path), rows, file.bytes, file.sha256, "line", 1, file.notes)
        for file, rows in ((first, counts[0]), (second, 0))  # a pair is one row, counted for its first file
    )
    return Frame(table, sources, left.reasons, remaining(counts[0], left), left.places)


def of_table(frame: Frame, *, strict: bool) -> Frame:
    """The two text columns of a table, named by their roles."""
    import pyarrow as pa
    import pyarrow.compute as pc

    one, other = text_columns(frame)
    source, target = strings(frame.column(one)), strings(frame.column(other))
    lacks = pc.add(
        pc.is_null(source).cast(pa.int8()), pc.multiply(pc.is_null(target).cast(pa.int8()), pa.scalar(2, pa.int8()))
    )
    table = pa.table({"source": source, "target": target})
    missing = lacks.to_numpy()
    skipped, places = dict(frame.skipped), dict(frame.skipped_at)
    for row in np.flatnonzero(missing).tolist():
        reason, place = EMPTY[int(missing[row])], frame.place(row)
        if strict:
            raise UserError(reason, where=place, fix="fix or remove it, or leave out bad=error")
        skipped[reason] = skipped.get(reason, 0) + 1
        if len(places.get(reason, ())) < 5:
            places[reason] = (*places.get(reason, ()), place)
    if missing.all():
        raise UserError("no row has text on both sides", where=frame.sources[0].name, fix="give a table with text")
    found = Frame(table, frame.sources, skipped, frame.numbers, places)
    return found.take(np.flatnonzero(missing == 0)) if missing.any() else found


def text_columns(frame: Frame) -> tuple[str, str]:
    """The two text columns; names like source and target take precedence."""
    lower = {name.lower(): name for name in frame.names}
    for pair in (("source", "target"), ("src", "tgt"), ("input", "output"), ("question", "answer")):
        if all(name in lower for name in pair):
            return lower[pair[0]], lower[pair[1]]
    if len(frame.names) == 2:
        return frame.names[0], frame.names[1]
    facts = look(frame, {})
    texts = [name for name in frame.names if facts[name].column.is_text]
    if len(texts) != 2:
        found = ", ".join(name[:30] for name in texts[:5]) or "none"
        what = f"two columns of text are needed, found {len(texts)} ({found})"
        raise UserError(what, where=frame.sources[0].name, fix="keep the two columns, or name them source and target")
    return texts[0], texts[1]


def remaining(rows: int, left: Left) -> np.ndarray | None:
    """The indices of the rows that are kept, if some are not."""
    if not left.numbers:
        return None
    kept = np.ones(rows, bool)
    kept[left.numbers] = False
    return np.flatnonzero(kept)


def batch_of(rows: list[tuple[str, str]]) -> Any:
    import pyarrow as pa

    columns = [pa.array([row[at] for row in rows], pa.string()) for at in (0, 1)]
    return pa.RecordBatch.from_arrays(columns, names=["source", "target"])

"""`-` in the place of a file: rows from standard input."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from anyformer.errors import UserError, did_you_mean

STDIN = Path("-")
FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "txt", "conll")


@contextmanager
def with_standard_input(paths: Sequence[Path], format: str | None) -> Iterator[list[Path]]:
    """The paths with what stands on standard input in the place of `-`, as a file that is gone afterwards.

    What it holds is found out by looking, unless `format` says it.
    """
    if format is not None and format not in FORMATS:
        raise UserError(f"no format is called {format!r}", where="--format", fix=did_you_mean(format, FORMATS))
    count = list(paths).count(STDIN)
    if format is not None and not count:
        raise UserError("--format is for rows from standard input", where="--format", fix="give - in place of a file")
    if count > 1:
        raise UserError("standard input can be read once", where="-", fix="give - once")
    if not count:
        yield list(paths)
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("nothing comes in on standard input", where="-", fix="pipe rows into it, or name a file")
    with tempfile.TemporaryDirectory(prefix="anyformer-") as folder:
        file = Path(folder) / ("stdin" if format is None else f"stdin.{format}")
        with file.open("wb") as sink:
            shutil.copyfileobj(sys.stdin.buffer, sink)
        if not file.stat().st_size:
            raise UserError("standard input is empty", where="-", fix="pipe rows into it, or name a file")
        yield [file if path == STDIN else path for path in paths]

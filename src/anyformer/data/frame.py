"""Frame: rows of named columns, in memory or memory-mapped; every file is read into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Source:
    """A file or in-memory source of rows, and how it was read."""

    name: str  # for messages: the file's name, or "rows" for Python data
    path: str = ""  # empty for Python data
    rows: int = 0
    bytes: int = 0
    sha256: str = ""
    unit: str = "row"  # noun for a row: row, line, image, sentence
    first: int = 1  # number of its first row (2 below a header line)
    notes: tuple[str, ...] = ()  # "Latin-1", "gzip", "delimiter ;", "no header"


@dataclass(frozen=True)
class Frame:
    """An Arrow table with its sources. Cells are strings for untyped files (CSV), else typed."""

    table: pa.Table
    sources: tuple[Source, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason to number of rows left out on reading
    numbers: np.ndarray | None = None  # each row's number in its source, from 0; None: all rows, in order
    skipped_at: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # reason to the locations of the first few
    remarks: tuple[str, ...] = ()  # sentences on how its files were found

    def __len__(self) -> int:
        return self.table.num_rows

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    @property
    def folder(self) -> Path:
        """The folder that file names in cells are relative to: that of the first source."""
        return Path(self.sources[0].path).parent if self.sources and self.sources[0].path else Path()

    def column(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)

    def take(self, rows: Sequence[int] | np.ndarray) -> Frame:
        """Some rows, in the given order; they keep their locations in the file."""
        chosen = np.asarray(rows, dtype=np.int64)
        kept = chosen if self.numbers is None else self.numbers[chosen]
        return replace(self, table=self.table.take(chosen), numbers=kept)

    def of(self, names: Sequence[str]) -> Frame:
        """Some columns, in the given order."""
        return replace(self, table=self.table.select(list(names)))

    def place(self, row: int) -> str:
        """The location of a row: `reviews.csv row 17`."""
        number = row if self.numbers is None else int(self.numbers[row])
        for source in self.sources:
            if number < source.rows:
                return f"{source.name} {source.unit} {number + source.first}"
            number -= source.rows
        return f"row {number + 1}"

    def cells(self, row: int) -> dict[str, Any]:
        """One row as Python values."""
        return {name: self.table.column(name)[row].as_py() for name in self.names}

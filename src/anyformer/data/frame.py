"""Frame: rows of named columns, in memory or mapped from disk. What every file becomes before anything is decided."""

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
    """One file (or thing in memory) that rows came from, and how it was read."""

    name: str  # as shown to people: the file's name, or "rows" for data given in Python
    path: str = ""  # empty for data given in Python
    rows: int = 0
    bytes: int = 0
    sha256: str = ""
    unit: str = "row"  # what a row is called there: row, line, image, sentence
    first: int = 1  # the number the first of its rows has there (2 below a header line)
    notes: tuple[str, ...] = ()  # "Latin-1", "gzip", "delimiter ;", "no header"


@dataclass(frozen=True)
class Frame:
    """An Arrow table with its origin. Cells are strings where the file has no types of its own (CSV), else typed."""

    table: pa.Table
    sources: tuple[Source, ...] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason to number of rows left out while reading
    numbers: np.ndarray | None = None  # each row's number in its source, counted from 0; None: all rows, in order
    skipped_at: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # reason to the first few such places
    remarks: tuple[str, ...] = ()  # what is worth saying of how its files were found, a sentence each

    def __len__(self) -> int:
        return self.table.num_rows

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    @property
    def folder(self) -> Path:
        """Where the files lie that its cells name: beside the first file the rows came from."""
        return Path(self.sources[0].path).parent if self.sources and self.sources[0].path else Path()

    def column(self, name: str) -> pa.ChunkedArray:
        return self.table.column(name)

    def take(self, rows: Sequence[int] | np.ndarray) -> Frame:
        """Some rows, in the order given; their places stay those of the file."""
        chosen = np.asarray(rows, dtype=np.int64)
        kept = chosen if self.numbers is None else self.numbers[chosen]
        return replace(self, table=self.table.take(chosen), numbers=kept)

    def of(self, names: Sequence[str]) -> Frame:
        """Some columns, in the order given."""
        return replace(self, table=self.table.select(list(names)))

    def place(self, row: int) -> str:
        """Where a row stands: `reviews.csv row 17`."""
        number = row if self.numbers is None else int(self.numbers[row])
        for source in self.sources:
            if number < source.rows:
                return f"{source.name} {source.unit} {number + source.first}"
            number -= source.rows
        return f"row {number + 1}"

    def cells(self, row: int) -> dict[str, Any]:
        """One row as plain values."""
        return {name: self.table.column(name)[row].as_py() for name in self.names}

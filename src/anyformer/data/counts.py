"""What happened to cells and rows on their way into arrays; nothing of it is silent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyformer.data.columns.base import absent
from anyformer.data.columns.cells import as_words
from anyformer.data.frame import Frame
from anyformer.errors import UserError

UNKNOWN = -200  # a class that training does not have: no loss counts it, and every answer to it is wrong


@dataclass
class ColumnCounts:
    """Counts by column, and the first place of what a person may want to look at: `colour=mauve, cars.csv row 7`."""

    rows: int
    cut: int = 0  # rows whose text was too long
    missing: dict[str, int] = field(default_factory=dict)  # cells without a value
    odd: dict[str, int] = field(default_factory=dict)  # among them those that hold something else than a number or date
    odd_first: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)  # cells with a value that is new to the model
    unknown_first: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # what else is worth saying
    unread: dict[int, UserError] = field(default_factory=dict)  # new rows whose image or recording cannot be read

    def plain(self) -> dict[str, Any]:
        """The counts as JSON holds them, but for the rows."""
        return {name: value for name, value in vars(self).items() if name not in ("rows", "unread")}

    def lost(self, frame: Frame, name: str, mask: np.ndarray) -> None:
        """Count cells that give no number, date or value."""
        if not mask.any():
            return
        self.missing[name] = int(mask.sum())
        said = mask & ~absent(frame.column(name), nones=True)
        if said.any():
            self.odd[name] = int(said.sum())
            self.odd_first[name] = describe_cell(frame, name, int(np.flatnonzero(said)[0]))


def describe_cell(frame: Frame, name: str, row: int) -> str:
    """A cell with its place: `colour=mauve, cars.csv row 7`."""
    value = str(as_words(frame.column(name).slice(row, 1))[0].as_py())
    return f"{name}={value[:40]}, {frame.place(row)}"

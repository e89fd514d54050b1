"""Counts of what happened to cells and rows during encoding, for the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyformer.data.columns.base import absent
from anyformer.data.columns.cells import as_words
from anyformer.data.frame import Frame
from anyformer.errors import UserError

UNKNOWN = -200  # a class unknown to training: excluded from losses, and every prediction for it is wrong


@dataclass
class ColumnCounts:
    """Counts by column, and the first place that a user may want to check: `colour=mauve, cars.csv row 7`."""

    rows: int
    cut: int = 0  # rows whose text was too long
    missing: dict[str, int] = field(default_factory=dict)  # cells without a value
    odd: dict[str, int] = field(default_factory=dict)  # missing ones that contain something other than a number or date
    odd_first: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)  # cells with a value unknown to the model
    unknown_first: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # further notes
    unread: dict[int, UserError] = field(default_factory=dict)  # new rows whose image or audio cannot be read

    def plain(self) -> dict[str, Any]:
        """The counts as JSON, without the rows."""
        return {name: value for name, value in vars(self).items() if name not in ("rows", "unread")}

    def lost(self, frame: Frame, name: str, mask: np.ndarray) -> None:
        """Count cells without a valid number, date or value."""
        if not mask.any():
            return
        self.missing[name] = int(mask.sum())
        said = mask & ~absent(frame.column(name), nones=True)
        if said.any():
            self.odd[name] = int(said.sum())
            self.odd_first[name] = describe_cell(frame, name, int(np.flatnonzero(said)[0]))


def describe_cell(frame: Frame, name: str, row: int) -> str:
    """A cell with its location: `colour=mauve, cars.csv row 7`."""
    value = str(as_words(frame.column(name).slice(row, 1))[0].as_py())
    return f"{name}={value[:40]}, {frame.place(row)}"

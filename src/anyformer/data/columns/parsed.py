"""Numbers and moments of a frame's columns, read from their cells once and kept on disk while rows are prepared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anyformer.data.columns.kinds import days, numbers
from anyformer.data.datasets.arrays import save_array
from anyformer.data.frame import Frame


class Parsed:
    """`numbers(name)` is float64 with nan, `moments(name, form)` datetime64 with NaT; without a folder in memory."""

    def __init__(self, frame: Frame, folder: Path | None = None) -> None:
        self.frame, self.folder = frame, folder
        self.held: dict[str, np.ndarray] = {}

    def numbers(self, name: str) -> np.ndarray:
        """The cells of a column as numbers."""
        return self.held[name] if name in self.held else self.keep(name, numbers(self.frame.column(name)))

    def moments(self, name: str, form: str) -> np.ndarray:
        """The cells of a column as moments, written in the given form."""
        known = self.held.get(name)
        return known if known is not None else self.keep(name, days(self.frame.column(name), form or None))

    def marks(self, name: str, kind: str, form: str = "") -> np.ndarray:
        """Whole numbers (N,) that are equal where the cells say the same number or moment."""
        if kind == "date":
            return self.moments(name, form).astype(np.int64)
        values = self.numbers(name) + 0.0  # one zero, not two
        return np.where(np.isnan(values), np.nan, values).view(np.int64)

    def keep(self, name: str, values: np.ndarray) -> np.ndarray:
        """Write an array to disk and map it, so that many columns of many rows need no memory."""
        if self.folder is None or not len(values):
            self.held[name] = values
            return values
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"column-{len(self.held)}.npy"
        save_array(path, values)
        self.held[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return self.held[name]

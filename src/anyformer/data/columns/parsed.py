"""Parsed columns of a frame: computed once and cached on disk while rows are prepared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anyformer.data.columns.base import Column, ColumnValues
from anyformer.data.datasets.arrays import save_array
from anyformer.data.frame import Frame


class Parsed:
    """The cells of columns as parsed by their kinds; without a folder they are kept in memory."""

    def __init__(self, frame: Frame, folder: Path | None = None) -> None:
        self.frame, self.folder = frame, folder
        self.held: dict[str, np.ndarray] = {}

    def values(self, kind: type[Column], name: str, form: str = "") -> ColumnValues:
        """The cells of a column as parsed by a kind, dates in the given format."""
        if name in self.held:
            return self.held[name]
        found = kind.read(self.frame.column(name), form)
        return self.keep(name, found) if isinstance(found, np.ndarray) else found

    def keep(self, name: str, values: np.ndarray) -> np.ndarray:
        """Save an array and memory-map it, so that many columns of many rows need no memory."""
        if self.folder is None or not len(values):
            self.held[name] = values
            return values
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"column-{len(self.held)}.npy"
        save_array(path, values)
        self.held[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return self.held[name]

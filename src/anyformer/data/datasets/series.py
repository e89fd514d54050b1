"""Time series: rows of a table sorted by time, cut into look-back windows and the steps to forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anyformer.data.datasets.arrays import Arrays
from anyformer.data.datasets.time_axis import month_numbers
from anyformer.data.examples import Draw, Examples
from anyformer.data.frame import Frame
from anyformer.data.targets import Future
from anyformer.objectives.batch import Batch


class SeriesExamples(Examples):
    """Windows of `length` steps and the next `horizon` steps, one starting at every step.

    The forecast steps lie in the rows from `begin` up to `stop`; the look-back window may reach further back, and steps
    before the first row are missing.
    """

    def __init__(self, arrays: Arrays, frame: Frame | None, target: Future, length: int, begin: int, stop: int) -> None:
        self.arrays, self.known, self.target, self.length = arrays, frame, target, length
        self.first, self.stop = begin, stop

    def __len__(self) -> int:
        return max(0, self.stop - self.first - self.target.horizon + 1)

    def __getstate__(self) -> dict[str, Any]:
        arrays = Arrays(Path(self.arrays.folder))
        arrays.facts = self.arrays.facts
        return self.__dict__ | {"arrays": arrays, "known": None if "frame" in arrays.facts else self.known}

    @property
    def frame(self) -> Frame:
        """The original rows."""
        if self.known is None:
            from anyformer.data.store import open_frame

            self.known = open_frame(self.arrays)
        return self.known

    @property
    def values(self) -> np.ndarray:
        """Scaled values (T, V), sorted by time, nan if missing."""
        return self.arrays["values"]

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        """Windows (B, length, V) and the steps after them (B, horizon, V)."""
        chosen = np.asarray(rows, np.int64)
        at = self.first + chosen
        windows = torch.from_numpy(window(self.values, at, self.length))
        after = torch.from_numpy(self.values[at[:, None] + np.arange(self.target.horizon)])
        return Batch((windows,), after, torch.from_numpy(chosen.copy()))

    def place(self, row: int) -> str:
        """The row of the first forecast step."""
        return self.frame.place(int(self.arrays["order"][self.first + row]))

    def steps(self, rows: np.ndarray) -> StepRows:
        """Every step of some windows as a row of its own, for reports."""
        return StepRows(self, np.asarray(rows))


class StepRows(Examples):
    """One row for each forecast step of each window."""

    def __init__(self, windows: SeriesExamples, rows: np.ndarray) -> None:
        self.windows, self.rows = windows, rows

    def __len__(self) -> int:
        return len(self.rows) * self.windows.target.horizon

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        return self.windows.batch(self.rows[np.asarray(rows) // self.windows.target.horizon], draw)

    def at(self, row: int) -> int:
        """The step's index in time."""
        number, ahead = divmod(row, self.windows.target.horizon)
        return self.windows.first + int(self.rows[number]) + ahead

    def place(self, row: int) -> str:
        ahead = row % self.windows.target.horizon + 1
        return f"{self.windows.frame.place(int(self.windows.arrays['order'][self.at(row)]))}, {ahead} ahead"

    def shown(self, row: int, most: int = 200) -> str:
        cells = self.windows.frame.cells(int(self.windows.arrays["order"][self.at(row)]))
        time = self.windows.target.time
        return str(cells.get(time, "")) if time else self.place(row)


@dataclass(frozen=True)
class RawSeries:
    """Windows of a time series: `values` (T, V), nan if missing, and the first forecast step of each window."""

    values: np.ndarray
    starts: np.ndarray  # in ascending order
    length: int
    horizon: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def stop(self) -> int:
        """The row after the last forecast step."""
        return int(self.starts[-1]) + self.horizon

    def windows(self, rows: np.ndarray) -> np.ndarray:
        """The look-back windows, (B, length, V); steps before the first row are nan."""
        return window(self.values, self.starts[rows], self.length)

    def futures(self, rows: np.ndarray) -> np.ndarray:
        """The steps to forecast, (B, horizon, V)."""
        return self.values[self.starts[rows, None] + np.arange(self.horizon)]


def window(values: np.ndarray, at: np.ndarray, length: int) -> np.ndarray:
    """The `length` rows before each of `at`, (B, length, V); rows before the first are nan."""
    back = at[:, None] + np.arange(-length, 0)
    found = np.array(values[np.maximum(back, 0)])
    found[back < 0] = np.nan
    return found


def after(times: np.ndarray, count: int) -> np.ndarray:
    """The next timestamps, at the most frequent recent interval."""
    seconds = times[-100:].astype("datetime64[s]").astype(np.int64)
    months = month_numbers(seconds.astype(np.float64)) if len(seconds) > 1 else None
    if months is not None:
        step, last = round(float(np.median(np.diff(months)))), int(months[-1])
        coming = (last + step * np.arange(1, count + 1)).astype("datetime64[M]").astype("datetime64[s]")
        return coming + (times[-1].astype("datetime64[s]") - times[-1].astype("datetime64[M]").astype("datetime64[s]"))
    steps = np.diff(seconds)
    usual = int(np.median(steps)) if len(steps) else 1
    return times[-1].astype("datetime64[s]") + np.arange(1, count + 1) * np.timedelta64(usual, "s")

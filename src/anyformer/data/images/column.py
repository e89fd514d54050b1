"""The image column of a frame: decoded once into the arrays, compared by pixels, fitted to a given model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from anyformer.data.columns.fitted import Image
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.frame import Frame
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.prepared import Say
from anyformer.data.settings import ImageSettings
from anyformer.data.usable import empty
from anyformer.errors import UserError

NAME = "pixels"
BLOCK = 2**22  # bytes hashed at once
MOST_WORKERS = 8


@dataclass
class Pictured:
    """What became of an image column."""

    column: str
    size: int
    channels: int
    steps: ImageSteps
    there: np.ndarray  # (N,): decoded
    broken: np.ndarray  # (N,): named, but cannot be read
    same: np.ndarray  # (N,): equal numbers for equal pixels


def decode_pictures(
    frame: Frame, column: str, settings: ImageSettings, arrays: Arrays, *, steps: ImageSteps | None, say: Say,
    bad: Literal["skip", "error"],
) -> Pictured:  # fmt: skip
    """Decode every picture of a column, in processes, into `arrays["pixels"]` (N, C, H, W)."""
    from anyformer.data.images.decode_all import picture_arrays, picture_steps

    path = frame.sources[0].path if frame.sources else ""
    folder = Path(path).parent if path else Path()
    size, channels, there = picture_arrays(
        frame.column(column), folder, settings, arrays, NAME, say=say, bad=bad, processes=workers(), steps=steps
    )
    broken = ~there & ~empty(frame, column)
    same = equal_pixels(arrays[NAME])
    return Pictured(column, size, channels, steps or picture_steps(size, channels), there, broken, same)


def decode_new_pictures(
    frame: Frame, column: Image, arrays: Arrays, *, steps: ImageSteps | None
) -> tuple[np.ndarray, dict[int, UserError]]:
    """Decode pictures for a model that knows their size: which rows have one, and why others cannot be read."""
    from anyformer.data.images.decode_all import new_pictures, picture_steps

    steps = steps or picture_steps(column.size or 0, column.channels or 3)
    folder = Path(frame.sources[0].path).parent if frame.sources and frame.sources[0].path else Path()
    cells = frame.column(column.name).to_pylist()
    there, reasons = new_pictures(cells, folder, arrays, NAME, steps=steps, processes=workers())
    unread = {}
    for row, reason in reasons.items():
        named = f"{cells[row][-120:]!r}" if isinstance(cells[row], str) else "the image"
        unread[row] = UserError(f"{named} cannot be read ({reason})", where=column.name, fix="give another image")
    return there, unread


def workers() -> int:
    return min(MOST_WORKERS, os.cpu_count() or 1)


def equal_pixels(pixels: np.ndarray) -> np.ndarray:
    """Numbers (N,), equal for pictures whose pixels are all equal."""
    flat = pixels.reshape(len(pixels), -1)
    factors = np.random.default_rng(0).integers(1, 2**63, flat.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    marks = np.zeros(len(flat), np.uint64)
    step = max(1, BLOCK // max(1, 8 * flat.shape[1]))
    for start in range(0, len(flat), step):
        block = flat[start : start + step].astype(np.uint64) + np.uint64(1)
        marks[start : start + step] = (block * factors).sum(1, dtype=np.uint64)
    return np.unique(marks, return_inverse=True)[1].reshape(-1)

"""Colours of numbers in pictures: ramps, and where a number stands on them. The same blue ramp as the page's."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from anyformer.errors import UserError

ValueScale = Literal["sqrt", "linear", "log"]
SCALES: dict[str, str] = {"sqrt": "square-root scale", "linear": "linear scale", "log": "logarithmic scale"}
DECADES = 4  # a logarithmic scale ends that far below its largest value
STOPS = {
    "blue": ("#ffffff", "#e2ebf6", "#b3cde8", "#76a5d4", "#3f78b8", "#214f92", "#142f66", "#0a173a"),
    "heat": ("#17103a", "#4d1c6e", "#973078", "#d8535a", "#f59b45", "#fbf0a6"),  # dark to light, for overlays
}


@cache
def ramp(name: str) -> np.ndarray:
    """A table (256, 3) of bytes."""
    stops = np.array([[int(hex_[i : i + 2], 16) for i in (1, 3, 5)] for hex_ in STOPS[name]], float)
    at = np.linspace(0, len(stops) - 1, 256)
    return np.rint(np.stack([np.interp(at, range(len(stops)), stops[:, c]) for c in range(3)], -1)).astype(np.uint8)


def check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise UserError(f"scale {scale!r} is not known", where="picture", fix="use " + ", ".join(SCALES))


def place(values: np.ndarray, top: float, scale: str) -> np.ndarray:
    """Numbers from 0 to `top` as places from 0 to 1 on a ramp."""
    share = np.clip(np.nan_to_num(np.asarray(values, float)) / max(top, 1e-30), 0.0, 1.0)
    if scale == "sqrt":
        return np.sqrt(share)
    return share if scale == "linear" else 1 + np.log10(np.maximum(share, 10.0**-DECADES)) / DECADES


def value_at(position: float, top: float, scale: str) -> float:
    """The number that stands at a place: the other way round."""
    if scale == "sqrt":
        return top * position**2
    return top * position if scale == "linear" else top * 10.0 ** (DECADES * (position - 1))


def coloured(values: np.ndarray, top: float, scale: str, name: str = "blue") -> np.ndarray:
    """Numbers (...) as colours (..., 3)."""
    return ramp(name)[np.rint(place(values, top, scale) * 255).astype(int)]


def hex_of(rgb: np.ndarray) -> str:
    return "#{:02x}{:02x}{:02x}".format(*(int(part) for part in rgb))


def ink_on(rgb: np.ndarray) -> str:
    """Black or white, whichever is read more easily."""
    light = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]
    return "#ffffff" if light < 140 else "#1a1c20"

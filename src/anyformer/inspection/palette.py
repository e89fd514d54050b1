"""Colour maps of figures and of the page, and the mapping of numbers to them."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np

from anyformer.errors import UserError

ValueScale = Literal["sqrt", "linear", "log"]
SCALES: dict[str, str] = {"sqrt": "square-root scale", "linear": "linear scale", "log": "logarithmic scale"}
DECADES = 4  # range of a logarithmic scale below its largest value
# For the page: a sequential ramp starts at the theme's background, a diverging one has it in the middle.
RAMPS = {
    "light": {
        "one": ("#ffffff", "#e2ebf6", "#b3cde8", "#76a5d4", "#3f78b8", "#214f92", "#142f66", "#0a173a"),
        "two": ("#0b3c8c", "#3f78b8", "#a9c6e6", "#ffffff", "#f3c79b", "#d07a2d", "#8a4200"),
    },
    "dark": {
        "one": ("#181b1f", "#1c2f45", "#1f4a6b", "#25698a", "#3a8c9b", "#6db3a2", "#b5d6a8", "#fbf3c4"),
        "two": ("#9cc7ff", "#4c8ad6", "#274a74", "#181b1f", "#70431b", "#d0803a", "#ffc998"),
    },
}
# Okabe and Ito's palette without yellow and black, adjusted to a contrast of 3:1 on the page.
CATEGORIES = {
    "light": ("#0072b2", "#b34f00", "#007a5a", "#a1497a", "#1f7fb5", "#8a6a00", "#5d636c", "#6a3fb5"),
    "dark": ("#56b4e9", "#ff9c4a", "#3fd0a4", "#e79bc4", "#9fd3ff", "#f0d060", "#b9bfc8", "#bfa3ff"),
}
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 3", "10 4", "4 2 1 2", "12 3")
# Colours of surfaces, text and roles, (light, dark), for the page and the reports.
TOKENS = {
    "paper": ("#fbfbfa", "#121417"), "panel": ("#ffffff", "#181b1f"), "wash": ("#f2f3f4", "#20242a"),
    "ink": ("#1b1d21", "#e8e9ea"), "soft": ("#5d636c", "#a3a9b2"), "hair": ("#e3e4e6", "#2c3036"),
    "line": ("#8a9099", "#747b85"),  # borders of controls and axes: 3:1 on the panel
    "accent": ("#1f5fbf", "#7db2ff"), "on-accent": ("#ffffff", "#10151c"),
    "good": ("#1a7340", "#6fce96"), "warn": ("#8a5300", "#f0b45a"), "bad": ("#b3261e", "#ff8f86"),
    "query": ("#1f5fbf", "#7db2ff"), "key": ("#a34700", "#ffab6b"), "value": ("#1a7340", "#6fce96"),
    "head": ("#8a2f8f", "#e29be6"),
}  # fmt: skip
FOR_THE_PAGE = {"ramps": RAMPS, "categories": CATEGORIES, "dashes": DASHES}
STOPS = {
    "blue": RAMPS["light"]["one"],
    "night": RAMPS["dark"]["one"],
    "two": RAMPS["light"]["two"],
    "heat": ("#17103a", "#4d1c6e", "#973078", "#d8535a", "#f59b45", "#fbf0a6"),  # dark to light, for overlays
}


@cache
def ramp(name: str) -> np.ndarray:
    """A colour map as a table (256, 3) of bytes."""
    stops = np.array([[int(hex_[i : i + 2], 16) for i in (1, 3, 5)] for hex_ in STOPS[name]], float)
    at = np.linspace(0, len(stops) - 1, 256)
    return np.rint(np.stack([np.interp(at, range(len(stops)), stops[:, c]) for c in range(3)], -1)).astype(np.uint8)


def check_scale(scale: str) -> None:
    if scale not in SCALES:
        raise UserError(f"scale {scale!r} is not known", where="picture", fix="use " + ", ".join(SCALES))


def place(values: np.ndarray, top: float, scale: str) -> np.ndarray:
    """Numbers from 0 to `top` as positions from 0 to 1 on a ramp."""
    share = np.clip(np.nan_to_num(np.asarray(values, float)) / max(top, 1e-30), 0.0, 1.0)
    if scale == "sqrt":
        return np.sqrt(share)
    return share if scale == "linear" else 1 + np.log10(np.maximum(share, 10.0**-DECADES)) / DECADES


def value_at(position: float, top: float, scale: str) -> float:
    """The number at a position: the inverse of `place`."""
    if scale == "sqrt":
        return top * position**2
    return top * position if scale == "linear" else top * 10.0 ** (DECADES * (position - 1))


def coloured(values: np.ndarray, top: float, scale: str, name: str = "blue") -> np.ndarray:
    """Numbers (...) as colours (..., 3)."""
    return ramp(name)[np.rint(place(values, top, scale) * 255).astype(int)]


def signed_colours(values: np.ndarray, top: float) -> np.ndarray:
    """Numbers from -top to top as diverging colours (..., 3); nan is grey."""
    values = np.asarray(values, float)
    share = np.clip(np.nan_to_num(values) / max(top, 1e-30), -1.0, 1.0)
    found = ramp("two")[np.rint((share + 1) / 2 * 255).astype(int)]
    return np.where(np.isnan(values)[..., None], np.uint8(236), found)


def hex_of(rgb: np.ndarray) -> str:
    return "#{:02x}{:02x}{:02x}".format(*(int(part) for part in rgb))


def ink_on(rgb: np.ndarray) -> str:
    """Black or white text, whichever has more contrast."""
    light = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]
    return "#ffffff" if light < 140 else "#1a1c20"

"""Numbers as files and JSON hold them."""

from __future__ import annotations

import numpy as np


def finite(value: float) -> float | None:
    """A number that JSON can write."""
    return value if np.isfinite(value) else None


def six_digits(values: np.ndarray) -> list[float]:
    """Probabilities rounded to what a file needs."""
    return values.astype(np.float64).round(6).tolist()

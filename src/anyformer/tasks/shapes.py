"""Numbers in files and JSON."""

from __future__ import annotations

import numpy as np


def finite(value: float) -> float | None:
    """A number that JSON can represent, or None."""
    return value if np.isfinite(value) else None


def six_digits(values: np.ndarray) -> list[float]:
    """Probabilities rounded to six digits for files."""
    return values.astype(np.float64).round(6).tolist()

"""Whether a metric is to be minimised or maximised: one table, extended by every task (`Task.smaller_is_better`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

Direction = Literal["min", "max"]

SMALLER = {"loss", "perplexity", "bits_per_byte", "log_loss", "rmse", "mae", "scaled_rmse", "calibration_error"}


def add_smaller(names: Iterable[str]) -> None:
    """Register metrics of a task that are to be minimised."""
    SMALLER.update(names)


def direction(name: str) -> Direction:
    """Whether a metric is to be minimised or maximised; its name may have the output it belongs to after a dot.

    >>> direction("rmse"), direction("accuracy"), direction("rmse.price")
    ('min', 'max', 'min')
    """
    return "min" if name.partition(".")[0] in SMALLER else "max"


def gain(name: str, ours: float, theirs: float = 0.0) -> float:
    """By how much `ours` is better; negative if it is worse.

    >>> gain("accuracy", 0.75, 0.5), gain("rmse", 0.75, 0.5)
    (0.25, -0.25)
    """
    return theirs - ours if direction(name) == "min" else ours - theirs


def better(name: str, ours: float, theirs: float) -> bool:
    """Whether `ours` is better; a value that is not finite never is."""
    if not math.isfinite(ours):
        return False
    return not math.isfinite(theirs) or (ours < theirs if direction(name) == "min" else ours > theirs)

"""How data is usually trained when nobody says, by what a row consists of. Every value can be set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Habit:
    """How one kind of data is usually trained."""

    epochs: int
    batch: int
    rate: float
    decay: float
    gpu_batch: int
    gpu_rate: float
    patience: int | None = None  # passes over the data without a better evaluation
    layer_rate: float = 1.0  # of each layer below the next


BY_PART = {
    "text": Habit(epochs=20, batch=32, rate=1e-3, decay=0.1, gpu_batch=64, gpu_rate=5e-4),
    "table": Habit(epochs=100, batch=256, rate=5e-4, decay=1e-5, gpu_batch=256, gpu_rate=3e-4, patience=40),
    "image": Habit(epochs=40, batch=64, rate=1e-3, decay=0.05, gpu_batch=128, gpu_rate=1e-3),
    "sound": Habit(epochs=40, batch=32, rate=1e-3, decay=0.05, gpu_batch=128, gpu_rate=1e-3),
}
MIXED = Habit(epochs=40, batch=32, rate=1e-3, decay=0.05, gpu_batch=128, gpu_rate=5e-4)
FINE_TUNE = Habit(epochs=5, batch=16, rate=5e-5, decay=0.01, gpu_batch=32, gpu_rate=5e-5, layer_rate=0.9)


def habit_for(parts: Sequence[str], *, start: bool) -> Habit:
    """The habit for rows of these parts; `start` is whether there is a model to start from."""
    if start:
        return FINE_TUNE
    return BY_PART[parts[0]] if len(parts) == 1 and parts[0] in BY_PART else MIXED

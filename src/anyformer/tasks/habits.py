"""How data is usually trained when nobody says, by what a row consists of. Every value can be set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Habit:
    """How one kind of data is usually trained."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    gpu_batch_size: int
    gpu_lr: float
    patience: int | None = None  # passes over the data without a better evaluation
    layer_lr_decay: float = 1.0  # of each layer below the next
    settings: Mapping[str, Any] = field(default_factory=dict)  # any others, by their paths below `training`


BY_PART = {
    "text": Habit(epochs=20, batch_size=32, lr=1e-3, weight_decay=0.1, gpu_batch_size=64, gpu_lr=5e-4),
    "table": Habit(
        epochs=100, batch_size=256, lr=5e-4, weight_decay=1e-5, gpu_batch_size=256, gpu_lr=3e-4, patience=40
    ),
    "image": Habit(epochs=40, batch_size=64, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=1e-3),
    "sound": Habit(epochs=40, batch_size=32, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=1e-3),
}
MIXED = Habit(epochs=40, batch_size=32, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=5e-4)
FINE_TUNE = Habit(
    epochs=5, batch_size=16, lr=5e-5, weight_decay=0.01, gpu_batch_size=32, gpu_lr=5e-5, layer_lr_decay=0.9
)


def habit_for(parts: Sequence[str], *, start: bool) -> Habit:
    """The habit for rows of these parts; `start` is whether there is a model to start from."""
    if start:
        return FINE_TUNE
    return BY_PART[parts[0]] if len(parts) == 1 and parts[0] in BY_PART else MIXED

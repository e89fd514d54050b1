"""How data is usually trained when nobody says. Every value can be set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TrainingDefaults:
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

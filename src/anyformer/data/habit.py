"""Default training settings by kind of data. Every value can be set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TrainingDefaults:
    """The default training settings for one kind of data."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    gpu_batch_size: int
    gpu_lr: float
    patience: int | None = None  # passes over the data without improvement
    layer_lr_decay: float = 1.0  # factor of each layer's lr to that of the layer above
    settings: Mapping[str, Any] = field(default_factory=dict)  # any others, by path below `training`

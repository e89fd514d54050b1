"""What a data set hands to an objective: the model's inputs, the targets, and which rows they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Batch:
    """One batch. The model is called as `model(*inputs, **named)`; `targets` is what the objective compares with.

    Targets that do not count are -100 (classes, tokens) or nan (numbers). `rows` are the numbers of the rows in their
    data set, for messages and for the order's fingerprint; they stay on the CPU.
    """

    inputs: tuple[Any, ...]
    targets: Tensor
    rows: Tensor
    named: dict[str, Any] = field(default_factory=dict)
    blend: tuple[Tensor, Tensor] | None = None  # of blended rows: the place of the other row, and the share of this one
    filler: bool = False  # counts for nothing: a process without rows keeps step with the others by it

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        inputs, targets, named, blend = moved((self.inputs, self.targets, self.named, self.blend), device)
        return Batch(inputs, targets, self.rows, named, blend, self.filler)


def moved(value: Any, device: torch.device) -> Any:
    """Every tensor inside, on the device; copies from pinned memory do not wait."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        return tuple(moved(item, device) for item in value)
    if isinstance(value, dict):
        return {name: moved(item, device) for name, item in value.items()}
    return value

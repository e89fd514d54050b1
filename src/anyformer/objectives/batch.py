"""What a data set hands to an objective: the model's inputs, the targets, and which rows they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
    weight: int | None = None  # how many targets count, where that is known already (see `Objective.weight`)
    most_targets: int | None = (
        None  # targets of a row that count at most, where they are few: the head scores no others
    )
    filler: bool = False  # counts for nothing: a process without rows keeps step with the others by it

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))  # from pinned memory nobody waits

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor but the rows replaced by what a function makes of it."""
        inputs, targets, named, blend = mapped((self.inputs, self.targets, self.named, self.blend), function)
        return replace(self, inputs=inputs, targets=targets, named=named, blend=blend)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """What a function makes of every tensor inside."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return tuple(mapped(item, function) for item in value)
    if isinstance(value, dict):
        return {name: mapped(item, function) for name, item in value.items()}
    return value

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
    pair: Tensor | None = None  # (B,) of two texts in a row: 0 the second is where it belongs, 1 it is not
    weight: int | None = None  # how many targets count, where that is known already (see `Objective.weight`)
    most_targets: int | None = None  # of a row that count, where they are few: the head scores no others
    members: int = 1  # of an ensemble, where its targets are there once for each
    filler: bool = False  # counts for nothing: a process without rows keeps step with the others by it

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))  # from pinned memory nobody waits

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor but the rows replaced by what a function makes of it."""
        return self.with_tensors(mapped(self.tensors, function))

    def for_members(self, members: int) -> Batch:
        """The batch as each member of an ensemble answers it: inputs once, targets and rows behind one another."""
        blend = self.blend
        if blend is not None:  # a member's row is blended with another row of the same member
            partner, share = blend
            starts = len(self) * torch.arange(members, device=partner.device)
            blend = ((partner + starts[:, None]).flatten(), share)
        return replace(
            self, targets=self.targets.repeat(members, *[1] * (self.targets.dim() - 1)), blend=blend,
            rows=self.rows.repeat(members), named=self.named | {"each_member": True}, members=members,
        )  # fmt: skip

    def for_one(self) -> Batch:
        """The same without members, as another model answers it."""
        count, named = len(self) // self.members, dict(self.named)
        named.pop("each_member", None)
        blend = self.blend if self.blend is None else (self.blend[0][:count], self.blend[1])
        return replace(self, targets=self.targets[:count], rows=self.rows[:count], named=named, blend=blend, members=1)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Everything in it that goes to a device."""
        return self.inputs, self.targets, self.named, self.blend, self.pair

    def with_tensors(self, tensors: tuple[Any, ...]) -> Batch:
        """The same batch with others in the place of its `tensors`."""
        inputs, targets, named, blend, pair = tensors
        return replace(self, inputs=inputs, targets=targets, named=named, blend=blend, pair=pair)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """What a function makes of every tensor inside."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return tuple(mapped(item, function) for item in value)
    if isinstance(value, dict):
        return {name: mapped(item, function) for name, item in value.items()}
    return value

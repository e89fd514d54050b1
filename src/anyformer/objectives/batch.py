"""A batch from a data set for an objective: the model's inputs, the targets and the row numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass
class Batch:
    """One batch. The model is called as `model(*inputs, **named)`; `targets` are for the objective.

    Ignored targets are -100 (classes, tokens) or nan (numbers). `rows` are row numbers in the data set, for messages
    and the fingerprint of the data order; they stay on the CPU.
    """

    inputs: tuple[Any, ...]
    targets: Tensor
    rows: Tensor
    named: dict[str, Any] = field(default_factory=dict)
    blend: tuple[Tensor, Tensor] | None = None  # mixup: index of the partner row, and weight of this row
    pair: Tensor | None = None  # (B,) sentence pairs: 0 a true pair, 1 a false one
    weight: int | None = None  # number of targets that count, if known already (see `Objective.weight`)
    most_targets: int | None = None  # most targets per row, if few: the head runs only on those
    members: int = 1  # of an ensemble, if the targets are repeated for each
    filler: bool = False  # has no weight: a process without rows runs it to stay in step with the others

    def __len__(self) -> int:
        return len(self.rows)

    def to(self, device: torch.device) -> Batch:
        """The batch moved to a device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))  # asynchronous from pinned memory

    def map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with a function applied to every tensor but `rows`."""
        return self.with_tensors(mapped(self.tensors, function))

    def for_members(self, members: int) -> Batch:
        """The batch for an ensemble: inputs once, targets and rows repeated for each member."""
        blend = self.blend
        if blend is not None:  # partners are rows of the same member
            partner, share = blend
            starts = len(self) * torch.arange(members, device=partner.device)
            blend = ((partner + starts[:, None]).flatten(), share)
        return replace(
            self, targets=self.targets.repeat(members, *[1] * (self.targets.dim() - 1)), blend=blend,
            rows=self.rows.repeat(members), named=self.named | {"each_member": True}, members=members,
        )  # fmt: skip

    def for_one(self) -> Batch:
        """The batch for a single model, the inverse of `for_members`."""
        count, named = len(self) // self.members, dict(self.named)
        named.pop("each_member", None)
        blend = self.blend if self.blend is None else (self.blend[0][:count], self.blend[1])
        return replace(self, targets=self.targets[:count], rows=self.rows[:count], named=named, blend=blend, members=1)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All tensors that are moved to a device."""
        return self.inputs, self.targets, self.named, self.blend, self.pair

    def with_tensors(self, tensors: tuple[Any, ...]) -> Batch:
        """The batch with its `tensors` replaced."""
        inputs, targets, named, blend, pair = tensors
        return replace(self, inputs=inputs, targets=targets, named=named, blend=blend, pair=pair)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A nested value with a function applied to every tensor."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple):
        return tuple(mapped(item, function) for item in value)
    if isinstance(value, dict):
        return {name: mapped(item, function) for name, item in value.items()}
    return value

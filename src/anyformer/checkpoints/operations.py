"""Reversible layout changes of tensors between two formats.

`pull` makes our tensor from theirs, `push` theirs from ours, `shapes` gives the expected shapes of theirs. Each gets
the
module that owns the projection, which knows the numbers of heads and channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Operation(Protocol):
    """A two-way layout change; `any_part`: one of the parts is enough to make ours."""

    any_part: bool

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor: ...

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]: ...

    def shapes(self, ours: Shape, owner: Any) -> list[Shape]: ...


class Shaped:
    """Derives `shapes` by pushing a `meta` tensor, so that the two cannot disagree."""

    any_part = False

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        raise NotImplementedError

    def shapes(self, ours: Shape, owner: Any) -> list[Shape]:
        return [tuple(part.shape) for part in self.push(torch.empty(ours, device="meta"), owner)]


class Same(Shaped):
    """The tensor unchanged."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return parts[0]

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        return [tensor]


class Transpose(Shaped):
    """Weights stored as (in, out), as in GPT-2; biases unchanged."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return parts[0].T if parts[0].dim() == 2 else parts[0]

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        return [tensor.T if tensor.dim() == 2 else tensor]


class QueryKeyValue(Shaped):
    """Three projections, heads in order, into rows grouped by KV head: G x (H/G queries, key, value)."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        sizes = owner.sizes
        grouped = [part.reshape(sizes.groups, -1, *part.shape[1:]) for part in parts]
        return torch.cat(grouped, 1).flatten(0, 1)

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        sizes = owner.sizes
        grouped = tensor.unflatten(0, (sizes.groups, -1))
        parts = grouped.split([sizes.per_group * sizes.channels, sizes.channels, sizes.value_channels], 1)
        return [part.flatten(0, 1) for part in parts]


class KeyValue(Shaped):
    """Keys and values of cross-attention into rows grouped by KV head."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        grouped = [part.reshape(owner.sizes.groups, -1, *part.shape[1:]) for part in parts]
        return torch.cat(grouped, 1).flatten(0, 1)

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        sizes = owner.sizes
        parts = tensor.unflatten(0, (sizes.groups, -1)).split([sizes.channels, sizes.value_channels], 1)
        return [part.flatten(0, 1) for part in parts]


class Thirds(QueryKeyValue):
    """One projection with all queries, then all keys, then all values (torch's MultiheadAttention, CLIP)."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        sizes = owner.sizes
        counts = [sizes.heads * sizes.channels, sizes.groups * sizes.channels, sizes.groups * sizes.value_channels]
        return super().pull(parts[0].split(counts), owner)

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        return [torch.cat(super().push(tensor, owner))]


class TransposedThirds(Thirds):
    """The same stored as (in, out), as GPT-2's c_attn."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return super().pull([parts[0].T if parts[0].dim() == 2 else parts[0]], owner)

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        (fused,) = super().push(tensor, owner)
        return [fused.T if fused.dim() == 2 else fused]


class Gate(Shaped):
    """Two projections, gate and value, into interleaved rows (inner, 2)."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return torch.stack(list(parts), 1).flatten(0, 1)

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        return list(tensor.unflatten(0, (-1, 2)).unbind(1))


class Halves(Shaped):
    """One projection whose halves are gate and value, in either order, into interleaved rows (inner, 2)."""

    def __init__(self, gate: int) -> None:
        self.gate = gate  # which half it is: 0 or 1

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        halves = parts[0].chunk(2)
        return torch.stack([halves[self.gate], halves[1 - self.gate]], 1).flatten(0, 1)

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        pair = tensor.unflatten(0, (-1, 2)).unbind(1)
        return [torch.cat([pair[self.gate], pair[1 - self.gate]])]


class StackedTensors(Shaped):
    """Several tensors of `counts` rows each, concatenated."""

    def __init__(self, *counts: int) -> None:
        self.counts = counts

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return torch.cat(list(parts))

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        return list(tensor.split(list(self.counts)))


class Patch(Shaped):
    """A convolution's weight (D, channels, rows, columns) as a matrix; its bias unchanged."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return parts[0].flatten(1) if parts[0].dim() == 4 else parts[0]

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        spec = owner.spec
        return [tensor.unflatten(1, (spec.channels, *spec.cell)) if tensor.dim() == 2 else tensor]


class Leading(Shaped):
    """Leading tokens, each (1, 1, D) or (D,), into rows of one tensor (n, D)."""

    def __init__(self, axes: int = 3) -> None:
        self.axes = axes

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return torch.cat([part.reshape(1, -1) for part in parts])

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        return [part.reshape(*(1,) * (self.axes - 1), -1) for part in tensor.split(1)]


class Batched(Shaped):
    """A table stored with a leading axis of 1: (1, N, D), or a bias (1, V)."""

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return parts[0][0]

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        return [tensor[None]]


class Copies(Shaped):
    """One of our tensors stored under two names: the first is the one used, the second must exist too."""

    any_part = True

    def pull(self, parts: Sequence[Tensor], owner: Any) -> Tensor:
        return parts[0]

    def push(self, tensor: Tensor, owner: Any) -> list[Tensor]:
        return [tensor, tensor.clone()]


SAME = Same()
TRANSPOSE = Transpose()
QKV = QueryKeyValue()
KV = KeyValue()
THIRDS = Thirds()
TRANSPOSED_THIRDS = TransposedThirds()
GATE = Gate()
PATCH = Patch()
LEADING = Leading()
BATCHED = Batched()
COPIES = Copies()

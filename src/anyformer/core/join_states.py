"""Join the decoding states of several batches into one: rows are concatenated, shorter sequences left-padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from anyformer.core.state import State


class Records(NamedTuple):
    """Indices, positions and padding mask of all recorded tokens, (B or 1, S), and real tokens so far, (B,1)."""

    ranks: Tensor
    positions: Tensor
    mask: Tensor | None
    counts: Tensor | None


def join_records(states: Sequence[State]) -> Records:
    """Records of several states joined, the shorter ones left-padded; equal lengths need no padding."""
    indices = [state.index for state in states if state.index is not None]
    positions = [state.positions for state in states if state.positions is not None]
    own = all(one is other for one, other in zip(indices, positions, strict=True))
    plain = own and all(state.mask is None and state.counts is None for state in states)
    most, device = max(index.shape[1] for index in indices), indices[0].device
    if plain and len({state.length for state in states}) == len({index.shape[1] for index in indices}) == 1:
        return Records(indices[0], positions[0], None, None)
    masks, counts = [], []
    for state, index in zip(states, indices, strict=True):
        every = torch.ones(state.batch, index.shape[1], dtype=torch.bool, device=device)
        masks.append(every if state.mask is None else state.mask)
        all_real = torch.full((state.batch, 1), state.length, device=device)
        counts.append(all_real if state.counts is None else state.counts)
    batches = [state.batch for state in states]
    joined = torch.cat([padded(one, rows, most) for one, rows in zip(indices, batches, strict=True)])
    placed = joined
    if not own:
        placed = torch.cat([padded(one, rows, most) for one, rows in zip(positions, batches, strict=True)])
    mask = torch.cat([padded(one, rows, most) for one, rows in zip(masks, batches, strict=True)])
    return Records(joined, placed, mask, torch.cat(counts))


def join_memories(states: Sequence[State]) -> tuple[Tensor | None, Tensor | None]:
    """Encoder outputs and their padding masks joined; shorter sources are right-padded."""
    memories = [state.memory for state in states if state.memory is not None]
    if not memories:
        return None, None
    masks = [state.memory_mask for state in states]
    if all(mask is None for mask in masks) and len({memory.shape[1] for memory in memories}) == 1:
        return torch.cat(memories), None
    real = [
        torch.ones(memory.shape[:2], dtype=torch.bool, device=memory.device) if mask is None else mask
        for memory, mask in zip(memories, masks, strict=True)
    ]
    return pad_right(memories, 1), pad_right(real, 1)


def padded(x: Tensor, rows: int, columns: int) -> Tensor:
    """Expand (B or 1, S) to that many rows and left-pad it with zeros to that many columns."""
    return F.pad(x.expand(rows, -1), (columns - x.shape[1], 0))


def pad_left(parts: Sequence[Tensor], most: int, size: int) -> Tensor:
    """Concatenate buffers (B,G,S,C) into one of `size` columns, each right-aligned within the first `most`."""
    _, groups, _, channels = parts[0].shape
    fresh, at = parts[0].new_zeros(sum(len(part) for part in parts), groups, size, channels), 0
    for part in parts:
        fresh[at : at + len(part), :, most - part.shape[2] : most] = part
        at += len(part)
    return fresh


def pad_right(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate tensors along the batch, zero-padding on the right those that are shorter along `dim`."""
    shape = list(parts[0].shape)
    shape[0], shape[dim] = sum(len(part) for part in parts), max(part.shape[dim] for part in parts)
    fresh, at = parts[0].new_zeros(shape), 0
    for part in parts:
        fresh[at : at + len(part)].narrow(dim, 0, part.shape[dim]).copy_(part)
        at += len(part)
    return fresh


def tensors_in(part: Any) -> Iterator[Tensor]:
    """Every tensor in a state, recursively."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for one in part:
            yield from tensors_in(one)
    elif part is not None and not isinstance(part, int | float | str):
        yield from tensors_in(list(vars(part).values()))

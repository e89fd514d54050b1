"""Tensors of which each process holds a part: torch's DTensor, asked here and nowhere else.

A program with one process never loads torch.distributed.tensor, and its tensors pass through unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def is_distributed(tensor: Any) -> bool:
    """Whether a tensor is spread over processes, in parts or in copies."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def is_part(tensor: Any) -> bool:
    """Whether this process holds a part of a tensor only."""
    return is_distributed(tensor) and any(placement.is_shard() for placement in tensor.placements)


def local(tensor: Tensor) -> Tensor:
    """The part that this process holds, in the same memory."""
    return tensor.to_local() if is_distributed(tensor) else tensor  # type: ignore[attr-defined]


def locals_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [local(tensor.detach()) for tensor in tensors]


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all processes; each of them must ask for it."""
    return tensor.detach().full_tensor() if is_distributed(tensor) else tensor.detach()  # type: ignore[attr-defined]


def spread_like(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor as `like` is spread; every process has it, and keeps its own part."""
    if not is_distributed(like) or is_distributed(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(device=like.device, dtype=like.dtype)
    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(value, mesh, placements, src_data_rank=None)


def copy_into(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter its values."""
    with torch.no_grad():
        parameter.copy_(spread_like(value, parameter))


@contextmanager
def filled_whole(parameter: Tensor) -> Iterator[Tensor]:
    """A whole tensor to fill in place of a parameter, which then gets its part of it; only one is whole at a time."""
    if not is_distributed(parameter):
        yield parameter
        return
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    yield values
    copy_into(parameter, values)

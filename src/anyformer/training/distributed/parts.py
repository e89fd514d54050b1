"""Sharded tensors: all use of torch's DTensor is in this module.

A single process never imports torch.distributed.tensor, and its tensors pass through unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def is_distributed(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, sharded or replicated."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and isinstance(tensor, loaded.DTensor)


def is_part(tensor: Any) -> bool:
    """Whether a tensor is sharded."""
    return is_distributed(tensor) and any(placement.is_shard() for placement in tensor.placements)


def local(tensor: Tensor) -> Tensor:
    """The local shard, sharing memory."""
    return tensor.to_local() if is_distributed(tensor) else tensor  # type: ignore[attr-defined]


def locals_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [local(tensor.detach()) for tensor in tensors]


def whole(tensor: Tensor) -> Tensor:
    """The full tensor, gathered from all processes; a collective call."""
    return tensor.detach().full_tensor() if is_distributed(tensor) else tensor.detach()  # type: ignore[attr-defined]


def spread_like(value: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor as `like` is sharded; every process holds it and keeps its own shard."""
    if not is_distributed(like) or is_distributed(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    value = value.to(device=like.device, dtype=like.dtype)
    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(value, mesh, placements, src_data_rank=None)


def copy_into(parameter: Tensor, value: Tensor) -> None:
    """Copy full values into a parameter, sharded or not."""
    with torch.no_grad():
        parameter.copy_(spread_like(value, parameter))


@contextmanager
def filled_whole(parameter: Tensor) -> Iterator[Tensor]:
    """Yield a full tensor to fill for a sharded parameter, which then keeps its shard; one parameter at a time."""
    if not is_distributed(parameter):
        yield parameter
        return
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
    yield values
    copy_into(parameter, values)


def add_local(output: Tensor, input: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """`output` of a layer plus what `compute` makes of its input, from what this process has of the input.

    A layer cut by rows has the whole input, whose gradient is then the sum over all processes; one cut by columns has
    a part of it, and a part of the sum that is its output.
    """
    if not is_distributed(output):
        return output + compute(input)
    from torch.distributed.tensor import DTensor, Partial

    is_whole = not is_part(input)
    here = input.to_local(grad_placements=[Partial()] if is_whole else None)  # type: ignore[attr-defined]
    more = compute(here)
    return output + DTensor.from_local(more, output.device_mesh, output.placements, run_check=False)  # type: ignore[attr-defined]


def own_part(tensor: Tensor, like: Tensor, dim: int) -> Tensor:
    """What of a tensor, whole in every process, goes with this process's part of `like`, which is cut along `dim`."""
    if not is_distributed(like) or not any(placement.is_shard(dim) for placement in like.placements):  # type: ignore[attr-defined]
        return tensor
    mesh = like.device_mesh  # type: ignore[attr-defined]
    return tensor.chunk(mesh.size(), dim)[mesh.get_local_rank()]


def work_on_wholes(parts: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Tensors of one shape, each made whole in one process and changed by `work`, in turn; this process's part of each.

    As many are whole at a time as there are processes.
    """
    import torch.distributed as dist

    mesh = parts[0].device_mesh  # type: ignore[attr-defined]
    size, rank = mesh.size(), mesh.get_local_rank()
    found: list[Tensor] = []
    for start in range(0, len(parts), size):
        some = parts[start : start + size]
        wholes = [whole(part) for part in some]  # each process takes part in gathering all of them
        mine = work(wholes[rank]).contiguous() if rank < len(some) else torch.zeros_like(wholes[0])
        done = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(done, mine, group=mesh.get_group())
        found += [local(spread_like(value, part)) for value, part in zip(done, some, strict=False)]
    return found

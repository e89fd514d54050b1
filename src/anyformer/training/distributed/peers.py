"""The other processes of a training, as seen from one of them: agreement and joint shutdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from anyformer.errors import UserError
from anyformer.inference.devices import pick_device
from anyformer.training.distributed.world import World

Value = TypeVar("Value")


class Peers:
    """A single process without peers; `JoinedPeers` implements the same interface for several."""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device = world, device
        self.asked: Callable[[], int | None] = lambda: None  # the exit code of a stop requested of this process
        self.on_abort: Callable[[str], None] = lambda reason: None  # called where the process ends from a thread

    @property
    def is_first(self) -> bool:
        """Whether this process writes files, shows progress and reports."""
        return self.world.is_first

    def broadcast(self, make: Callable[[], Value]) -> Value:
        """The result of `make` in the first process, sent to every process as JSON; its errors are raised in all."""
        return make()

    def exchange(self, weight: int) -> int:
        """Sum of the weights of all processes; called once per step, and also agrees on stop requests."""
        return weight

    def stop_code(self) -> int | None:
        """The exit code of a stop agreed on by all processes."""
        return self.asked()

    def gather(self, value: Any) -> list[Any]:
        """A JSON value of every process, in rank order."""
        return [value]

    def note_step(self, done: int) -> None:
        """Record this process's step, for error messages of the others."""

    def explain(self, error: BaseException) -> str:
        """What went wrong, for run.json."""
        return str(error)

    def part(self) -> None:
        """Leave the group: from here on the other processes are neither waited for nor watched."""


@contextmanager
def join(world: World, device: str) -> Iterator[Peers]:
    """Join the other processes for the block. If it fails in one, it ends in all, and is reported once.

    `device` is the requested device; each process picks its own (`Peers.device`).
    """
    if world.is_alone:
        yield Peers(world, pick_device(device))
        return
    from anyformer.training.distributed.joined import JoinedPeers  # one process never loads torch.distributed for it

    peers = JoinedPeers(world)
    try:
        peers.connect(place_of(world, pick_device(device)))
        yield peers
        peers.part()
    except BaseException as error:
        found = peers.report(error)
        if found is error:
            raise
        raise found from error


def place_of(world: World, device: torch.device) -> torch.device:
    """The device of this process: the GPU of its local rank."""
    if device.type != "cuda":
        return device
    if ":" in str(device):
        raise UserError(f"{device} is one GPU, and there are {world.size} processes", where="--device",
                        fix="use --device cuda")  # fmt: skip
    count = torch.cuda.device_count()
    if world.local_rank >= count:
        raise UserError(f"process {world.local_rank + 1} of this machine has no GPU: there are {count}",
                        where="--device", fix=f"torchrun --nproc-per-node {count}")  # fmt: skip
    place = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(place)
    return place

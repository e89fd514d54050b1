"""The other processes of a training, as one of them sees them: agreeing with them, and ending with them."""

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
    """Nobody: one process agrees with itself. `JoinedPeers` answers the same for several."""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device = world, device
        self.asked: Callable[[], int | None] = lambda: None  # the exit code of a stop that this process was asked for
        self.on_abort: Callable[[str], None] = lambda reason: None  # called where the process ends from a thread

    @property
    def is_first(self) -> bool:
        """Whether this process writes, shows and reports."""
        return self.world.is_first

    def broadcast(self, make: Callable[[], Value]) -> Value:
        """What the first process makes, in every process: plain values that JSON can hold. Its errors are theirs."""
        return make()

    def exchange(self, weight: int) -> int:
        """The sum of all weights; once a step, and on the way everybody learns whether anybody was asked to stop."""
        return weight

    def stop_code(self) -> int | None:
        """The exit code of a stop that every process knows of."""
        return self.asked()

    def gather(self, value: Any) -> list[Any]:
        """A plain value of every process, in the order of their ranks."""
        return [value]

    def note_step(self, done: int) -> None:
        """How far this process is, for a message that others may have to write."""

    def explain(self, error: BaseException) -> str:
        """What went wrong, for the record of the run."""
        return str(error)

    def part(self) -> None:
        """From here on every process goes its own way: the others are not waited for, nor looked at."""


@contextmanager
def join(world: World, device: str) -> Iterator[Peers]:
    """The other processes, while the block runs. However it ends here, it ends everywhere, and is reported once.

    `device` is what was asked for; each process finds its own (`Peers.device`).
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
    """The device of this process: its own GPU of the machine."""
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

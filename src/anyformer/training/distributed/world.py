"""Rank and size of a distributed training, as given by the launcher."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from anyformer.errors import AlreadyReported, UserError

NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # a launcher sets all of them or none


@dataclass(frozen=True)
class World:
    """This process's rank among `size`, and its local rank on its machine, which is also its GPU index.

    `address` and `port` are the rendezvous. `restarts` is how often the launcher has restarted all processes,
    `max_restarts` how often it may.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = ""
    port: int = 0
    restarts: int = 0
    max_restarts: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process writes files, shows progress and reports."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.size == 1


ALONE = World()
REPORT_SECONDS = 3.0  # enough for a process to print its error on a busy machine


@contextmanager
def report_once_per_host(world: World) -> Iterator[None]:
    """Before the processes have joined, a user error occurs in each of them: report it once per host."""
    try:
        yield
    except UserError as error:
        if world.local_rank:
            raise AlreadyReported(error.exit_code) from error
        raise


def wait_before_exit(world: World) -> None:
    """Delay a silent exit: a launcher kills all processes as soon as one has exited, also the one that is about to
    report the error. That one is done long before this delay ends."""
    if not world.is_alone:
        time.sleep(REPORT_SECONDS)


def read_world(environment: Mapping[str, str]) -> World:
    """The world described by torchrun's environment variables; without a launcher, a single process.

    >>> read_world({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"})
    World(rank=3, size=8, local_rank=1, address='node0', port=29500, restarts=0, max_restarts=0)
    >>> read_world({"WORLD_SIZE": "8"}).is_alone
    True
    """
    if not all(environment.get(name) for name in NAMES):
        return ALONE
    rank = int(environment["RANK"])
    return World(
        rank, int(environment["WORLD_SIZE"]), int(environment.get("LOCAL_RANK", rank)), environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]), int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
        int(environment.get("TORCHELASTIC_MAX_RESTARTS", 0)),
    )  # fmt: skip

"""Heartbeats: detect that another process is gone or stopped, and what failed first.

A collective waits for every process; for one that was killed on another machine, or stopped, it would wait until a
timeout of half an hour, and a shorter timeout would end a run whose first process is only writing a large checkpoint.
So each process has a thread that increments a counter in the launcher's store and checks its neighbour's counter. A
process that fails writes the reason to the store; only the first reason is kept, and all processes read it there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch.distributed import PrefixStore, Store, TCPStore

from anyformer.errors import RESOURCES
from anyformer.training.distributed.world import World

BEAT = 1.0  # seconds between heartbeats
LOST = 15.0  # seconds without one after which a process counts as lost; the launcher may take 30 more to remove it
GONE = 4.0  # the same once a connection has broken: then the only question is which process it was
GRACE = 5.0  # seconds for a process to exit by itself after another one has failed
ERROR = "first-error"


@dataclass(frozen=True)
class Failure:
    """The first failure of a distributed training."""

    rank: int
    step: int
    reason: str
    code: int
    told_by: int  # the rank that detected it, and reports it

    @property
    def line(self) -> str:
        return f"rank {self.rank} at step {self.step:,}: {self.reason}"


class PeerWatch:
    """Sends this process's heartbeat and checks its neighbour's; `end` is called if a failure cannot be handled by the
    main thread."""

    def __init__(self, world: World, end: Callable[[Failure], None]) -> None:
        self.world, self.end = world, end
        self.store = open_store(world)
        self.step = 0  # steps done, for messages
        self.known: Failure | None = None  # the first failure, once the thread has found it
        self.closed = threading.Event()
        # A connection of its own: the main thread may be waiting on the other one.
        self.thread = threading.Thread(target=self.run, args=(open_store(world),), daemon=True, name="watch")

    def start(self) -> None:
        self.store.set(f"beat-{self.world.rank}", "0")  # from here on its absence is noticed
        self.thread.start()

    def close(self) -> None:
        """Stop sending and checking heartbeats."""
        self.closed.set()
        self.thread.join(2 * BEAT)

    def lost(self, rank: int) -> Failure:
        """The failure of a lost process; all are at the same step, so it is this one's."""
        reason = "no sign of life: it was killed or stopped, or its machine is lost"
        return Failure(rank, self.step, reason, RESOURCES, self.world.rank)

    def without_store(self) -> Failure:
        """The failure if the store is gone, and with it the launcher or the first process that hosts it."""
        gone = Failure(0, self.step, "it is gone, or the launcher is", RESOURCES, told_by=1)
        return gone if self.known is None else self.known

    def find_lost(self) -> Failure | None:
        """After a connection has broken: the reported failure, or the process that is gone."""
        first, since = self.beats(self.store), time.monotonic()
        while time.monotonic() - since < GONE:
            if found := first_failure(self.store):
                return found
            time.sleep(BEAT / 4)
        now = self.beats(self.store)
        quiet = [rank for rank in now if now[rank] == first[rank] and rank != self.world.rank]
        return self.lost(quiet[0]) if quiet else None

    def beats(self, store: Store) -> dict[int, str]:
        return {rank: read_beat(store, rank) for rank in range(self.world.size)}

    def run(self, store: Store) -> None:
        """Thread body: runs until closed or a failure is found."""
        count, seen, since = 0, "", time.monotonic()
        neighbour = (self.world.rank + 1) % self.world.size
        while not self.closed.wait(BEAT):
            try:
                count += 1
                store.set(f"beat-{self.world.rank}", str(count))
                if failure := first_failure(store):
                    self.known = failure
                    if not self.closed.wait(GRACE):
                        self.end(failure)
                    return
                beat = read_beat(store, neighbour)
                if beat != seen or not beat:  # before its first heartbeat it is still starting
                    seen, since = beat, time.monotonic()
                elif time.monotonic() - since > LOST:
                    self.end(claim(store, self.lost(neighbour)))
                    return
            except RuntimeError:
                if not self.closed.wait(GRACE):
                    self.end(self.without_store())
                return


def open_store(world: World) -> Store:
    """Connect to the rendezvous store, with a prefix per restart: the store outlives restarts."""
    return PrefixStore(f"watch-{world.restarts}", TCPStore(world.address, world.port, is_master=False))


def claim(store: Store, failure: Failure) -> Failure:
    """Record a failure unless there is one already; returns the recorded one."""
    return Failure(**json.loads(store.compare_set(ERROR, "", json.dumps(asdict(failure)))))


def first_failure(store: Store) -> Failure | None:
    """The recorded failure of any process, if any."""
    return Failure(**json.loads(store.get(ERROR))) if store.check([ERROR]) else None


def read_beat(store: Store, rank: int) -> str:
    """The last heartbeat of a process; empty before the first."""
    name = f"beat-{rank}"
    return store.get(name).decode() if store.check([name]) else ""


def leave_at_once(code: int) -> None:
    """Exit the process from a thread while the main thread is blocked."""
    os._exit(code)

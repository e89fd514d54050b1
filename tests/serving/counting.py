"""The server's own counters, under the names the proofs use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, fields

from tests.serving.server import Server, metrics_of
from tests.serving.wire import ask


@dataclass
class Counts:
    """One reading of /metrics."""

    accepted: float
    done: float
    cancelled: float
    failed: float
    deadline: float
    refused: float
    active: float  # rows in use
    queued: float
    rows: float  # rows there are
    free: float
    new_tokens: float

    @property
    def over(self) -> float:
        return self.done + self.cancelled + self.failed + self.deadline

    @property
    def idle(self) -> bool:
        """Nothing waits and every row is free."""
        return not self.active and not self.queued and self.free == self.rows


NAMES = {
    "accepted": "anyformer_requests_accepted_total",
    "done": "anyformer_requests_done_total",
    "cancelled": "anyformer_requests_cancelled_total",
    "failed": "anyformer_requests_failed_total",
    "deadline": "anyformer_requests_late_total",
    "refused": "anyformer_requests_refused_total",
    "active": "anyformer_active_rows",
    "queued": "anyformer_queue_length",
    "rows": "anyformer_rows",
    "free": "anyformer_rows_free",
    "new_tokens": "anyformer_generated_tokens_total",
}


def counts_of(text: str) -> Counts:
    found = metrics_of(text)
    return Counts(**{field.name: found[NAMES[field.name]] for field in fields(Counts)})


def read(server: Server) -> Counts:
    return counts_of(server.get("/metrics").text)


async def read_soon(server: Server) -> Counts:
    """The same without stopping the loop that plays the clients."""
    return counts_of((await ask(server.port, "/metrics")).body.decode())


async def until(server: Server, wanted: Callable[[Counts], bool], patience: float = 10.0) -> float:
    """Seconds until the counters are as wanted; infinite if they do not become so."""
    began = time.monotonic()
    while time.monotonic() - began < patience:
        if wanted(await read_soon(server)):
            return time.monotonic() - began
        await asyncio.sleep(0.01)
    return float("inf")

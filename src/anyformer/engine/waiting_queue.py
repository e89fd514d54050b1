"""The request queue: bounded, round robin over clients, FIFO within a client."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

Work = TypeVar("Work")


class QueueFull(Exception):
    """The queue is full; retry after `after` seconds."""

    def __init__(self, after: float) -> None:
        super().__init__(f"the queue is full; try again in {after:.0f} s")
        self.after = after


class EngineClosed(Exception):
    """The engine accepts no more work: it is shutting down or has broken."""


class WaitingQueue(Generic[Work]):
    """One FIFO per client. The last eighth of the capacity is reserved for clients with nothing queued.

    So a client that floods the queue fills seven eighths, and others are still admitted.
    """

    def __init__(self, cost: int, length: int) -> None:
        self.max_cost, self.max_length = cost, length
        self.cost = self.length = 0
        self.lines: OrderedDict[str, deque[tuple[Work, int]]] = OrderedDict()  # the first is the next to be served

    def excess(self, client: str, cost: int) -> int:
        """By how much the limit would be exceeded, 0 if there is room. An empty queue admits work of any size."""
        if not self.length:
            return 0
        share = 8 if client not in self.lines else 7
        return max(
            self.cost + cost - self.max_cost * share // 8,
            cost if self.length >= max(1, self.max_length * share // 8) else 0,
            0,
        )

    def put(self, client: str, work: Work, cost: int) -> None:
        """Append to the client's queue."""
        self.lines.setdefault(client, deque()).append((work, cost))
        self.cost += cost
        self.length += 1

    def take(self, fits: Callable[[Work], bool] | None = None) -> Work | None:
        """Take the next client's first work; with `fits`, of the next client whose first work fits."""
        for client, line in self.lines.items():
            work, cost = line[0]
            if fits is None or fits(work):
                line.popleft()
                self.cost -= cost
                self.length -= 1
                if line:
                    self.lines.move_to_end(client)
                else:
                    del self.lines[client]
                return work
        return None

    def remove(self, wanted: Callable[[Work], bool]) -> list[Work]:
        """Remove all work that is `wanted`."""
        found: list[Work] = []
        for client, line in list(self.lines.items()):
            kept = deque(entry for entry in line if not wanted(entry[0]))
            if len(kept) == len(line):
                continue
            found += [work for work, _ in line if wanted(work)]
            self.cost -= sum(cost for _, cost in line) - sum(cost for _, cost in kept)
            self.length -= len(line) - len(kept)
            if kept:
                self.lines[client] = kept
            else:
                del self.lines[client]
        return found

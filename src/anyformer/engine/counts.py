"""What an engine counts: plain numbers that any thread may read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

# Seconds. Upper edges, each about twice the one before; one more bucket takes what is above the last.
WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
HALF_LIFE = 5.0  # seconds of work after which an old rate counts half


class Histogram:
    """How many values fell at or below each edge and above the one before it."""

    def __init__(self, edges: Sequence[float] = WAITS) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """One more value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    @property
    def total(self) -> int:
        """How many values there are."""
        return sum(self.counts)


class Rate:
    """Tokens or rows a second of the recent past, counted while there was work."""

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """What the last moments of work brought."""
        keep = 0.5 ** (seconds / HALF_LIFE)
        self.tokens, self.seconds = self.tokens * keep + tokens, self.seconds * keep + seconds

    @property
    def per_second(self) -> float:
        """0 where nothing is known yet."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Counts:
    """Sequences and calls by how they ended, tokens, what waits and runs now, and how long things took.

    accepted = done + cancelled + failed + deadline + in_flight, whenever `Engine.lock` is held.
    """

    accepted: int = 0
    rejected: int = 0  # for want of room in the queue
    done: int = 0
    cancelled: int = 0
    failed: int = 0
    deadline: int = 0
    in_flight: int = 0  # accepted and not finished

    prompt_tokens: int = 0  # of prompts that were prefilled, reused ones included
    reused_tokens: int = 0  # in the KV cache from an earlier sequence
    new_tokens: int = 0
    answered_rows: int = 0  # of calls

    queue_length: int = 0  # sequences that wait
    queue_tokens: int = 0  # their prompts and what they may generate
    queue_rows: int = 0  # rows of calls that wait
    active: int = 0  # sequences that are prefilled or decoded
    paused: int = 0  # sequences whose clients are behind

    first_token: Histogram = field(default_factory=Histogram)  # from the creation of a sequence
    between_tokens: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    rate: Rate = field(default_factory=Rate)  # tokens run and generated
    call_rate: Rate = field(default_factory=Rate)  # rows of calls

    @property
    def finished(self) -> int:
        """Work that has ended in one way or another."""
        return self.done + self.cancelled + self.failed + self.deadline

"""Engine metrics: plain numbers that any thread may read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

# Upper bucket edges in seconds, each about twice the previous one; a last bucket takes everything above.
WAITS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
HALF_LIFE = 5.0  # of the moving rate, in seconds of work


class Histogram:
    """Counts of values in buckets with upper edges."""

    def __init__(self, edges: Sequence[float] = WAITS) -> None:
        self.edges = tuple(edges)
        self.counts = [0] * (len(self.edges) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.sum += value

    @property
    def total(self) -> int:
        """The number of values."""
        return sum(self.counts)


class Rate:
    """Recent tokens or rows per second, measured while there was work."""

    def __init__(self) -> None:
        self.tokens = self.seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Add work done in some seconds."""
        keep = 0.5 ** (seconds / HALF_LIFE)
        self.tokens, self.seconds = self.tokens * keep + tokens, self.seconds * keep + seconds

    @property
    def per_second(self) -> float:
        """The rate; 0 before the first measurement."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Counts:
    """Sequences and calls by outcome, tokens, current queue and load, and latencies.

    accepted = done + cancelled + failed + deadline + in_flight, whenever `Engine.lock` is held.
    """

    accepted: int = 0
    rejected: int = 0  # because the queue was full
    done: int = 0
    cancelled: int = 0
    failed: int = 0
    deadline: int = 0
    in_flight: int = 0  # accepted and not finished

    prompt_tokens: int = 0  # of prefilled prompts, including prefix-cache hits
    reused_tokens: int = 0  # prefix-cache hits
    new_tokens: int = 0
    answered_rows: int = 0  # of calls

    queue_length: int = 0  # waiting sequences
    queue_tokens: int = 0  # their prompt and maximal new tokens
    queue_rows: int = 0  # waiting rows of calls
    active: int = 0  # sequences in prefill or decode
    paused: int = 0  # sequences whose clients read too slowly

    first_token: Histogram = field(default_factory=Histogram)  # from the creation of a sequence
    between_tokens: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    rate: Rate = field(default_factory=Rate)  # tokens run and generated
    call_rate: Rate = field(default_factory=Rate)  # rows of calls

    @property
    def finished(self) -> int:
        """Work that has ended, whatever the outcome."""
        return self.done + self.cancelled + self.failed + self.deadline

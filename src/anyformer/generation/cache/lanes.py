"""Which slot holds which text: rows that are open, and rows that have ended and may be gone on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Source = tuple[int, ...] | None


@dataclass(eq=False)
class Held:
    """What a row holds: `length` tokens of one scope, read after one source."""

    scope: str = ""
    source: Source = None  # what the encoder read, for an encoder-decoder
    length: int = 0
    tokens: list[int] = field(default_factory=list)  # as far as the CPU knows them
    steps: list[tuple[list[Tensor], int]] = field(default_factory=list)  # what followed: tokens (N,), and which of them

    def took(self, tokens: Sequence[int]) -> None:
        """These tokens were read."""
        self.recall()
        if len(self.tokens) == self.length:
            self.tokens += tokens
        self.length += len(tokens)

    def recall(self) -> None:
        """Bring to the CPU what was written since, where that was noted."""
        for texts, which in self.steps:
            self.tokens += torch.stack(texts)[:, which].tolist() if texts else []
        self.steps = []


@dataclass(eq=False)
class Lane(Held):
    """One slot and what stands in its first columns."""

    slot: int = 0
    open: bool = False
    used: int = 0  # when it was opened or closed last

    def end(self, *, keep: bool) -> None:
        """The row is closed, and perhaps gone on from later."""
        self.open = False
        if keep:
            self.recall()
            self.length = len(self.tokens)
        else:
            self.length, self.tokens, self.steps, self.source = 0, [], [], None


class Lanes:
    """The lanes of a store, one a slot."""

    def __init__(self, capacity: int) -> None:
        self.all = [Lane(slot=slot) for slot in range(capacity)]
        self.clock = 0

    @property
    def free(self) -> int:
        return sum(not lane.open for lane in self.all)

    def open(self, tokens: Sequence[int], source: Source, scope: str) -> tuple[Lane, Lane | None, int]:
        """A lane for a prompt, the lane to copy its beginning from (perhaps itself), and how much of it is known.

        Only what was read in the same scope counts, and from the same source. A lane that has ended is gone on from in
        place if nothing is lost by it; else what has not been used for longest gives way.
        """
        prompt = list(tokens)
        best, known = None, 0
        for lane in self.all:
            if lane.scope != scope or lane.source != source or not lane.length:
                continue
            same = min(common(prompt, lane.tokens), len(prompt) - 1)
            if same > known or (best is None and source is not None):
                best, known = lane, same
        idle = [lane for lane in self.all if not lane.open]
        others = [lane for lane in idle if lane is not best]
        if best is not None and not best.open and (best.length == known or not others):
            lane = best
        else:
            lane = min(others, key=lambda lane: (lane.length > 0, lane.used, lane.slot))
        lane.open, lane.length, lane.scope, lane.source = True, known, scope, source
        lane.tokens, lane.steps = prompt[:known], []
        self.touch(lane)
        return lane, best, known

    def close(self, lane: Lane, *, keep: bool) -> None:
        lane.end(keep=keep)
        self.touch(lane)

    def touch(self, lane: Lane) -> None:
        self.clock += 1
        lane.used = self.clock

    def move(self, rows: Sequence[Lane]) -> tuple[Lane, Lane] | None:
        """Two lanes that should change slots so that these rows stand closer together, or None."""
        first, last = min(rows, key=lambda lane: lane.slot), max(rows, key=lambda lane: lane.slot)
        between = [lane for lane in self.all if not lane.open and first.slot < lane.slot < last.slot]
        if not between:
            return None
        slots = sorted(lane.slot for lane in rows)
        from_first = slots[1] - slots[0] > slots[-1] - slots[-2]  # the end that stands apart moves
        hole = max(between, key=lambda lane: lane.slot) if from_first else min(between, key=lambda lane: lane.slot)
        return (first if from_first else last), hole

    def lower(self, rows: Sequence[Lane]) -> tuple[Lane, Lane] | None:
        """Two lanes that should change slots so that these rows stand in the lowest ones, or None."""
        last = max(rows, key=lambda lane: lane.slot)
        hole = next((lane for lane in self.all[: last.slot] if not lane.open), None)
        return None if hole is None else (last, hole)

    def swap(self, one: Lane, other: Lane) -> None:
        """Two lanes change slots."""
        one.slot, other.slot = other.slot, one.slot
        self.all[one.slot], self.all[other.slot] = one, other


def common(one: list[int], other: list[int]) -> int:
    """How many tokens two texts begin with alike."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # alike up to `low`, not up to `high`
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low

"""The slots of a static cache: sequences in use, and freed ones whose prefix a later prompt may share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.generation.cache.store import CachedTokens, SourceKey


@dataclass(eq=False)
class Slot(CachedTokens):
    """One row of the static cache and the tokens in its first columns."""

    index: int = 0
    in_use: bool = False
    used_at: int = 0  # clock of the last time it was taken or freed

    def release(self, *, keep: bool) -> None:
        """Free the slot; if `keep`, its tokens may serve as a prefix."""
        self.in_use = False
        if keep:
            self.fetch_tokens()
            self.length = len(self.tokens)
        else:
            self.length, self.tokens, self.steps, self.source = 0, [], [], None


class SlotTable:
    """The slots of a static cache."""

    def __init__(self, capacity: int) -> None:
        self.slots = [Slot(index=index) for index in range(capacity)]
        self.clock = 0

    @property
    def available(self) -> int:
        return sum(not slot.in_use for slot in self.slots)

    def take(self, prompt: Sequence[int], source: SourceKey, scope: str) -> tuple[Slot, Slot | None, int]:
        """A slot for a prompt, the slot to copy its prefix from (perhaps itself), and the length of that prefix.

        Prefixes are shared only within a scope and for the same source. A freed slot is reused in place if no other
        cached prefix is lost by it; else the least recently used one is overwritten.
        """
        tokens = list(prompt)
        best, cached = None, 0
        for slot in self.slots:
            if slot.scope != scope or slot.source != source or not slot.length:
                continue
            same = min(common_prefix(tokens, slot.tokens), len(tokens) - 1)
            if same > cached or (best is None and source is not None):
                best, cached = slot, same
        others = [slot for slot in self.slots if not slot.in_use and slot is not best]
        if best is not None and not best.in_use and (best.length == cached or not others):
            slot = best
        else:
            slot = min(others, key=lambda slot: (slot.length > 0, slot.used_at, slot.index))
        slot.in_use, slot.length, slot.scope, slot.source = True, cached, scope, source
        slot.tokens, slot.steps = tokens[:cached], []
        self.touch(slot)
        return slot, best, cached

    def release(self, slot: Slot, *, keep: bool) -> None:
        slot.release(keep=keep)
        self.touch(slot)

    def touch(self, slot: Slot) -> None:
        self.clock += 1
        slot.used_at = self.clock

    def find_gap(self, slots: Sequence[Slot]) -> tuple[Slot, Slot] | None:
        """A pair of slots to swap so that the given ones are closer together, or None."""
        first, last = min(slots, key=lambda slot: slot.index), max(slots, key=lambda slot: slot.index)
        between = [slot for slot in self.slots if not slot.in_use and first.index < slot.index < last.index]
        if not between:
            return None
        used = sorted(slot.index for slot in slots)
        from_first = used[1] - used[0] > used[-1] - used[-2]  # move the end that is further from the others
        gap = (max if from_first else min)(between, key=lambda slot: slot.index)
        return (first if from_first else last), gap

    def find_lower(self, slots: Sequence[Slot]) -> tuple[Slot, Slot] | None:
        """A pair of slots to swap so that the given ones get lower indices, or None."""
        last = max(slots, key=lambda slot: slot.index)
        gap = next((slot for slot in self.slots[: last.index] if not slot.in_use), None)
        return None if gap is None else (last, gap)

    def swap(self, one: Slot, other: Slot) -> None:
        """Exchange two slots."""
        one.index, other.index = other.index, one.index
        self.slots[one.index], self.slots[other.index] = one, other


def common_prefix(one: list[int], other: list[int]) -> int:
    """Length of the common prefix of two sequences."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # equal up to `low`, not up to `high`
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low

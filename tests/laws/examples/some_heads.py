"""Positions of heads that pruning has left."""

from __future__ import annotations

from typing import Any

from anyformer.positions.alibi import Alibi
from anyformer.positions.buckets import Buckets
from anyformer.positions.some_heads import SomeHeads

EXAMPLES = {
    SomeHeads: {
        "some-heads": SomeHeads(relative=Buckets(buckets=8, distance=16), heads=(0, 2, 3, 5), of=6),
        "some-heads-alibi": SomeHeads(relative=Alibi(), heads=(1, 2, 3, 4), of=8),
    },
}
ALIKE = {"some-heads-alibi"}


def other_heads(parts: dict[str, Any]) -> bool:
    """The mixer has another number of heads than the positions."""
    return bool(parts["mixer"].sizes(16).heads != 4)


REASONS = {r"positions of 4 heads serve an attention of \d+": other_heads}

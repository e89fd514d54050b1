"""What the data dictates about a network that is to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Sizes:
    """What a network must be built for; see `data.preprocess.sizes`."""

    parts: list[str]
    rows: int | None = None  # to train on; defaults go by it, no network depends on it
    vocab: int = 0
    length: int | None = None
    pad: int | None = None
    segments: int = 0
    numbers: int = 0
    categories: list[int] | None = None
    image: int | tuple[int, int] | None = None
    channels: int = 3
    sample_rate: int = 16000
    samples: int = 16000
    loudness: list[float] | None = None
    classes: int = 0
    outputs: int = 0
    multi: bool = False
    spans: bool = False  # whether tags mark spans, as B-PER and I-PER do
    start: int | None = None
    objects: int = 0
    more: dict[str, Any] = field(default_factory=dict)  # what modalities from outside the library say

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Sizes:
        """The sizes among the facts of a data set."""
        known = {field.name for field in fields(cls)}
        more = {name: value for name, value in facts.items() if name not in known}
        return cls(**{name: value for name, value in facts.items() if name in known}, more=more)

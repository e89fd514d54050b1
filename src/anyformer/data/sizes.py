"""The sizes of the data that a network depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class Sizes:
    """The data sizes that a network must be built for; see `data.preprocess.sizes`."""

    parts: list[str]
    rows: int | None = None  # training rows; defaults depend on it, networks do not
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
    spans: bool = False  # whether tags mark spans, such as B-PER and I-PER
    start: int | None = None
    objects: int = 0
    more: dict[str, Any] = field(default_factory=dict)  # sizes of custom modalities

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Sizes:
        """The sizes among the facts of a data set."""
        known = {field.name for field in fields(cls)}
        more = {name: value for name, value in facts.items() if name not in known}
        return cls(**{name: value for name, value in facts.items() if name in known}, more=more)

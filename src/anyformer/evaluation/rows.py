"""Rows: what a baseline learns from, as plain arrays. The data layer fills in what the data has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Rows:
    """The raw inputs of one side of a split, before any scaling or tokenizing; what a data set lacks stays None.

    texts       N strings; several text columns joined by a space. Language model: the documents in order
    numbers     (N, K) floats, nan where a value is missing; dates as seconds or as parts
    categories  (N, K) of strings (None or "" is missing) or of whole numbers (negative is missing)
    images      (N, H, W) or (N, H, W, channels), of any number type, all of one size
    words       N lists of words (tagging)
    sources     N texts to translate
    tokens      (T,) token numbers of a language model's text
    """

    texts: Sequence[str] | None = None
    numbers: np.ndarray | None = None
    categories: np.ndarray | None = None
    images: np.ndarray | None = None
    words: Sequence[Sequence[str]] | None = None
    sources: Sequence[str] | None = None
    tokens: np.ndarray | None = None

    def __len__(self) -> int:
        return max((len(value) for value in self.filled().values()), default=0)

    def filled(self) -> dict[str, Any]:
        """The fields that the data has."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def take(self, rows: np.ndarray) -> Rows:
        """Some rows, in the order given."""
        return replace(self, **{name: chosen(value, rows) for name, value in self.filled().items()})


def chosen(values: Any, rows: np.ndarray) -> Any:
    """Items of an array or of a list."""
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]


def sampled(count: int, most: int, seed: int) -> np.ndarray:
    """At most `most` of `count` rows, drawn without return, in their order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])

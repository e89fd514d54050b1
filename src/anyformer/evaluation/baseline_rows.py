"""Rows that a baseline learns from, as plain arrays; the data layer sets the fields that the data has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from anyformer.data.datasets.rows import RowExamples
from anyformer.data.datasets.series import RawSeries


@dataclass(frozen=True)
class RawRows:
    """The raw inputs of one split, before any scaling or tokenizing; fields that a data set lacks stay None.

    texts       N strings; several text columns joined by a space. Language model: the documents in order
    numbers     (N, K) floats, nan where a value is missing; dates as seconds or as parts
    categories  (N, K) of strings (None or "" is missing) or of integers (negative is missing)
    images      (N, H, W) or (N, H, W, channels), of any numeric dtype, all of one size
    words       N lists of words (tagging)
    sources     N texts to translate
    tasks       N task names, if the rows have different tasks
    tokens      (T,) token ids of a language model's text
    series      windows of a time series (forecasting)
    sizes       (N, 2) width and height of images (detection)
    """

    texts: Sequence[str] | None = None
    numbers: np.ndarray | None = None
    categories: np.ndarray | None = None
    images: np.ndarray | None = None
    words: Sequence[Sequence[str]] | None = None
    sources: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    tokens: np.ndarray | None = None
    series: RawSeries | None = None
    sizes: np.ndarray | None = None

    def __len__(self) -> int:
        return max((len(value) for value in self.filled().values()), default=0)

    def filled(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def take(self, rows: np.ndarray) -> RawRows:
        """The given rows, in the given order."""
        return replace(self, **{name: take_items(value, rows) for name, value in self.filled().items()})


def take_items(values: Any, rows: np.ndarray) -> Any:
    """Items of an array or of a list."""
    return values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]


def sample_rows(count: int, most: int, seed: int) -> np.ndarray:
    """At most `most` of `count` rows, sampled without replacement and sorted."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).permutation(count)[:most])


def raw_rows(examples: RowExamples) -> RawRows:
    """The raw inputs of the same rows, for a baseline."""
    frame = examples.frame.take(examples.rows)
    found: dict[str, Any] = {}
    numbers: list[np.ndarray] = []
    for modality in examples.modalities:
        found |= modality.features(examples, frame)
        numbers += [found.pop("numbers")] if "numbers" in found else []
    if numbers:
        found["numbers"] = np.concatenate(numbers, 1).astype(np.float64)
    return RawRows(**found)

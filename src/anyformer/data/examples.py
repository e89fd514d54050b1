"""Rows ready for a model. Any batch of them is a pure function of their numbers, the seed and the epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw

if TYPE_CHECKING:
    from anyformer.data.mixing import MixedRows

__all__ = ["Draw", "Examples"]


class Examples(ABC):
    """One side of a split: training, validation or test rows."""

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        """These rows as a batch; with a `draw` they are augmented as in training, without it taken as they are."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Where a row came from, as a person would look for it: `reviews.csv row 812`."""

    def take(self, rows: np.ndarray) -> Examples | None:
        """Some of the rows as examples of their own; None where they are what they are only together, as the windows
        of a text."""
        return None

    def shown(self, row: int, most: int = 200) -> str:
        """A row's input as short text, for reports."""
        return self.place(row)

    @property
    def cut_anew(self) -> bool:
        """Whether every epoch cuts other rows out of the same data, so that a rest may be left out of an epoch."""
        return False

    @property
    def mixed(self) -> MixedRows | None:
        """How rows of several tasks are mixed in training; None where every row comes once in an epoch."""
        return None

    @property
    def lengths(self) -> np.ndarray | None:
        """Tokens of each row, where rows differ and batches of like lengths save padding."""
        return None

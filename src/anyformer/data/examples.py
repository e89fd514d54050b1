"""Rows ready for a model. Any batch of them is a pure function of their indices, the seed and the epoch."""

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
        """Number of rows."""

    @abstractmethod
    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        """These rows as a batch; with a `draw` augmented as in training, without it unchanged."""

    @abstractmethod
    def place(self, row: int) -> str:
        """The location of a row for messages: `reviews.csv row 812`."""

    def take(self, rows: np.ndarray) -> Examples | None:
        """Some of the rows as examples of their own; None if rows depend on each other, like the windows of a text."""
        return None

    def shown(self, row: int, most: int = 200) -> str:
        """A row's input as short text, for reports."""
        return self.place(row)

    @property
    def cut_anew(self) -> bool:
        """Whether every epoch cuts different rows from the same data, so that it may drop a remainder."""
        return False

    @property
    def mixed(self) -> MixedRows | None:
        """How rows of several tasks are mixed in training; None if every row occurs once per epoch."""
        return None

    @property
    def lengths(self) -> np.ndarray | None:
        """Number of tokens of each row, if rows differ and length-sorted batches save padding."""
        return None

"""The windows of questions, as examples of their own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from anyformer.data.datasets.rows import RowExamples
from anyformer.data.examples import Draw, Examples
from anyformer.objectives.batch import Batch


class QuestionWindows(Examples):
    """Every window of some questions. `owner` is the index of its question, numbered as in `questions`."""

    def __init__(self, questions: RowExamples) -> None:
        self.questions = questions
        starts, rows = questions.arrays["windows_starts"], questions.rows
        counts = starts[rows + 1] - starts[rows]
        self.owner = np.repeat(np.arange(len(rows)), counts)
        within = np.arange(len(self.owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        self.numbers = np.repeat(starts[rows], counts) + within  # indices of the windows in the arrays

    def __len__(self) -> int:
        return len(self.numbers)

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        """A batch of windows, padded on the right to the longest; targets (B,2) are start and end of the answer."""
        chosen = np.asarray(rows, np.int64)
        at = self.numbers[chosen]
        inputs, named = self.questions.inputs(at, chosen, draw)
        targets = torch.from_numpy(np.array(self.questions.arrays["targets"][at]))
        return Batch(inputs, targets, torch.from_numpy(chosen.copy()), named)

    def context_at(self, window: int) -> tuple[int, int, int]:
        """The position of the context's first token in a window, the number of its tokens, and of those before it."""
        first, count, before = self.questions.arrays["context_at"][self.numbers[window]].tolist()
        return first, count, before

    def place(self, row: int) -> str:
        return self.questions.place(int(self.owner[row]))

    def shown(self, row: int, most: int = 200) -> str:
        return self.questions.shown(int(self.owner[row]), most)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each window."""
        starts = self.questions.arrays["tokens_starts"]
        return np.asarray(starts[self.numbers + 1] - starts[self.numbers])

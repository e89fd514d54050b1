"""The batches of an evaluation, recorded for reuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import nn

from anyformer.objectives import Batch
from anyformer.tasks.evaluator import Evaluator


class BatchRecorder(Evaluator):
    """An evaluator that records its batches."""

    def __init__(self, evaluator: Evaluator, most: int) -> None:
        super().__init__(
            evaluator.objective, evaluator.preprocess, evaluator.tokenizer, batch_size=evaluator.batch_size
        )
        self.most, self.kept = most, []  # type: int, list[Batch]

    def __call__(self, model: nn.Module, examples: Any, *, most: int | None = None, decode: bool = False) -> Any:
        return super().__call__(model, examples, most=self.most, decode=False)

    def passes(self, model: nn.Module, examples: Any, rows: np.ndarray) -> Iterator[tuple[Batch, Any]]:
        for batch, out in super().passes(model, examples, rows):
            self.kept.append(batch)
            yield batch, out

"""Evaluator: a model's predictions for a whole data set, beside the targets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn

from anyformer.data.examples import Examples
from anyformer.data.preprocess import Preprocess
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.evaluation.answers import Answers
from anyformer.objectives import Batch, Objective
from anyformer.objectives.draw import EVALUATION
from anyformer.tasks.known_tasks import find


class Evaluator:
    """Runs a model on every row; the task interprets its outputs."""

    def __init__(
        self,
        objective: Objective,
        preprocess: Preprocess,
        tokenizer: Tokenizer | None,
        *,
        batch_size: int,
        autocast: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.objective, self.preprocess, self.tokenizer = objective, preprocess, tokenizer
        self.batch_size, self.autocast = batch_size, autocast or nullcontext()
        self.task = find(preprocess.task)

    @torch.no_grad()
    def __call__(
        self, model: nn.Module, examples: Examples, *, most: int | None = None, decode: bool = True
    ) -> Answers:
        """Answers for all rows, or for `most` of them spread evenly over the data; `decode` also generates texts."""
        count = len(examples)
        rows = np.arange(count) if most is None or most >= count else np.linspace(0, count - 1, most).astype(np.int64)
        part = examples.take(rows) if len(rows) < count else None
        if part is not None:  # so that baselines and reports use the same rows
            examples, rows = part, np.arange(len(rows))
        model.eval()
        return self.task.answer(self, model, examples, rows, decode=decode)

    def passes(self, model: nn.Module, examples: Examples, rows: np.ndarray) -> Iterator[tuple[Batch, Any]]:
        """The model's outputs, batch by batch; rows of similar length share a batch."""
        device = next(model.parameters()).device
        lengths = examples.lengths
        order = rows if lengths is None else rows[np.argsort(lengths[rows], kind="stable")]
        for start in range(0, len(order), self.batch_size):
            batch = examples.batch(order[start : start + self.batch_size])
            batch = self.objective.corrupt(batch, EVALUATION, examples).to(device)
            with self.autocast:
                yield batch, model(*batch.inputs, **batch.named)

    def sum_tokens(self, model: nn.Module, examples: Examples, rows: np.ndarray) -> tuple[float, int, np.ndarray]:
        """Summed negative log-likelihood (nats) and number of all target tokens, and the mean of each row."""
        nats, tokens, losses, order = 0.0, 0, [], []
        for batch, out in self.passes(model, examples, rows):
            each = self.objective.row_losses(out, batch).double().cpu()
            counted = (batch.targets != -100).sum(1).cpu()
            nats += float((each * counted).sum())
            tokens += int(counted.sum())
            losses.append(each.numpy())
            order.append(batch.rows.numpy())
        return nats, tokens, sort_back(losses, order)


def sort_back(values: list[np.ndarray], order: list[np.ndarray]) -> np.ndarray:
    """Concatenate values of batches and sort them back to the order of their rows."""
    return np.concatenate(values)[np.argsort(np.concatenate(order), kind="stable")] if values else np.zeros(0)

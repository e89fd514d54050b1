"""Objective: what a model is trained for. Its loss is a sum over targets, so that parts of a batch add up exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyformer.objectives.batch import Batch
from anyformer.slots import Losses
from anyformer.spec import Spec

IGNORED = -100  # a class or token target that does not count


def with_extra(total: Tensor, losses: Losses | None, counted: Tensor | int) -> Tensor:
    """The sum over `counted` targets with the model's own losses (of experts), each as if every target had it."""
    for loss in (losses or {}).values():
        total = total + loss.to(total.dtype) * counted
    return total


def full(values: Tensor) -> Tensor:
    """In single precision at least: half is not enough for a sum over many classes."""
    return values if values.dtype == torch.float64 else values.float()


class Objective(Spec, slot=True):
    """`loss(model, batch) -> sum of losses over the targets that count`; `weight(batch)` says how many those are.

    The step divides by the weight of the whole step, so k micro-batches give the gradients of one batch k times as
    large, also when their numbers of targets differ. `prepare` changes a batch at random while training (mixup).
    """

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch as the model will see it in training; random only through the generator."""
        return batch

    def weight(self, batch: Batch) -> int:
        """How many targets count; known on the CPU before the batch goes to its device."""
        return int((batch.targets != IGNORED).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sum of the losses of all targets that count."""
        raise NotImplementedError

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        """The loss of each row (B,), the mean over its targets, from a pass already made; for reports."""
        raise NotImplementedError

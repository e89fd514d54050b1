"""Objective: what a model is trained for. Its loss is a sum over targets, so that parts of a batch add up exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import Draw
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


class Phase(NamedTuple):
    """A part of a training step with a loss and optimizers of its own; it moves the parameters of one submodule.

    An ordinary objective has one phase, over the whole model. Several alternate: each sees the weights that the one
    before it has just moved, and draws random numbers of its own.
    """

    loss: Callable[[nn.Module, Batch], Tensor]
    name: str = ""  # in metrics.jsonl, as NAME_loss, and in messages; a single phase needs none
    module: str = ""  # the path of the submodule that it trains; "" is the whole model
    lr_scale: float = 1.0  # times the learning rate of the training
    ema: bool = True  # whether training.ema keeps a running mean of these weights


class BatchSource(Protocol):
    """Where batches come from, as an objective that hides a part of them sees it: `Examples` of any kind."""

    def __len__(self) -> int: ...

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch: ...


class Objective(Spec, slot=True):
    """`loss(model, batch) -> sum of losses over the targets that count`; `weight(batch)` says how many those are.

    The step divides by the weight of the whole step, so k micro-batches give the gradients of one batch k times as
    large, also when their numbers of targets differ. `prepare` changes a batch at random while training (mixup).
    `corrupt` hides a part of the data and asks for it, in training and in evaluation alike (masked words).
    An objective whose optimizers alternate has `phases` instead of a `loss`.
    """

    compiles: ClassVar[bool] = True  # whether torch can compile its losses whole
    min_batch_size: ClassVar[int] = 1  # rows that a pass needs; from 2 on the rest of an epoch is left out

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        """The batch with a part of it hidden, and what was hidden as its targets.

        Random only through `draw.generator(row)` of each of the batch's rows, so that a row is hidden in the same way
        in whatever batch it comes; evaluation draws the same numbers every time. `source` is where the batch is from.
        """
        return batch

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        """The batch as the model will see it in training; random only through the generator."""
        return batch

    def weight(self, batch: Batch) -> int:
        """How many targets count; known on the CPU before the batch goes to its device."""
        return int((batch.targets != IGNORED).sum())

    def known_weight(self, batch: Batch) -> int:
        """The weight that a batch brings, or the one counted now: on a GPU counting would wait for the device."""
        return self.weight(batch) if batch.weight is None else batch.weight

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sum of the losses of all targets that count."""
        raise NotImplementedError

    def phases(self) -> tuple[Phase, ...]:
        """The phases of a step, in their order."""
        return (Phase(self.loss),)

    def compared_models(self, device: torch.device) -> dict[str, nn.Module]:
        """Other models that a report shows beside the trained one, by name: the teacher of a student."""
        return {}

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        """The loss of each row (B,), the mean over its targets, from a pass already made; for reports."""
        raise NotImplementedError

"""Objective: base of the training objectives. Losses are sums over targets, so that micro-batches add up exactly."""

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

IGNORED = -100  # a class or token target that is ignored, as in torch


def with_extra(total: Tensor, losses: Losses | None, counted: Tensor | int) -> Tensor:
    """Add the model's auxiliary losses (of experts) to a sum over `counted` targets, once per target."""
    for loss in (losses or {}).values():
        total = total + loss.to(total.dtype) * counted
    return total


def full(values: Tensor) -> Tensor:
    """At least fp32: half precision is not enough for a sum over many classes."""
    return values if values.dtype == torch.float64 else values.float()


class Phase(NamedTuple):
    """A part of a training step with its own loss and optimizers, which update the parameters of one submodule.

    An ordinary objective has one phase, over the whole model. Several run in turn: each sees the weights just updated
    by the one before it, and has its own random numbers.
    """

    loss: Callable[[nn.Module, Batch], Tensor]
    name: str = ""  # in metrics.jsonl, as NAME_loss, and in messages; a single phase needs none
    module: str = ""  # path of the submodule that it trains; "" is the whole model
    lr_scale: float = 1.0  # times the learning rate of the training
    ema: bool = True  # whether training.ema averages these weights


class BatchSource(Protocol):
    """The source of batches, as seen by `corrupt`: `Examples` of any kind."""

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
    min_batch_size: ClassVar[int] = 1  # least rows of a pass; from 2 on an epoch's incomplete last batch is dropped

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        """The batch with a part of it masked, and what was masked as its targets.

        Random only through `draw.generator(row)`, so that a row's mask does not depend on its batch; evaluation draws
        the same numbers every time. `source` is the batch's source.
        """
        return batch

    def prepare(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Augment a batch for training; random only through the generator."""
        return batch

    def weight(self, batch: Batch) -> int:
        """Number of targets that count, computed on the CPU before the batch is moved to its device."""
        return int((batch.targets != IGNORED).sum())

    def known_weight(self, batch: Batch) -> int:
        """The batch's precomputed weight, or the one counted now, which on a GPU needs a sync."""
        return self.weight(batch) if batch.weight is None else batch.weight

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The sum of the losses of all targets that count."""
        raise NotImplementedError

    def phases(self) -> tuple[Phase, ...]:
        """The phases of a step, in order."""
        return (Phase(self.loss),)

    def compared_models(self, device: torch.device) -> dict[str, nn.Module]:
        """Other models to report beside the trained one, by name, such as the teacher of a student."""
        return {}

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        """The mean loss over the targets of each row (B,), from a forward pass's output; for reports."""
        raise NotImplementedError

"""`ddp`: every process has the whole model and its part of the rows; gradients are summed."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from anyformer.slots import Network
from anyformer.training.distributed.gradient_sum import GradientSum
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.settings import Training


class ReplicatedParallel(Parallel):
    """Replicated weights, kept equal by equal gradients."""

    name = "ddp"
    splits_rows = True

    def build(self, spec: Network, settings: Training) -> Any:
        model = super().build(spec, settings)
        for parameter in model.parameters():  # another kind of processor may initialise with different last bits
            dist.broadcast(parameter.detach(), 0)
        self.gradients = GradientSum(model)
        return model

    def backward(self, loss: Tensor, leaves: list[nn.Parameter] | None, *, last: bool) -> None:
        if last:
            self.gradients.arm()
        loss.backward(inputs=leaves)
        if last:
            self.gradients.wait()

    def sum_loss(self, loss: Tensor) -> Tensor:
        dist.all_reduce(loss)
        return loss

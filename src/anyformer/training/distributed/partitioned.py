"""Models of which each process holds a part, however they are cut: how they are built, filled and clipped."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from anyformer.core.building import has_outside_parts
from anyformer.core.init import initialise
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.streams import Streams
from anyformer.core.towers import Towers
from anyformer.slots import Network
from anyformer.training.distributed.parallel import Parallel, choose_trained
from anyformer.training.distributed.parts import filled_whole, is_part, locals_of
from anyformer.training.settings import Training


class PartitionedParallel(Parallel):
    """`cut` says how; the rest is the same for all."""

    shards = True

    @property
    def mesh(self) -> DeviceMesh:
        """All processes in a row."""
        return init_device_mesh(self.peers.device.type, (self.peers.world.size,))

    def build(self, spec: Network, settings: Training) -> Any:
        """Cut while it has shapes only, then filled parameter by parameter: no process ever holds the whole model.

        Every process draws the numbers that one process would draw, and keeps its part. Parts from outside the library
        set their own numbers when they are built; such a model is built whole and then cut.
        """
        device = self.peers.device
        if has_outside_parts(spec) or not isinstance(spec, Model | Seq2Seq | Streams | Towers):
            model = spec.build(seed=settings.seed, device=device)
            choose_trained(model, settings)
            self.cut(model, settings)
            self.fit(model)
            return model
        model = spec.build(device="meta")
        choose_trained(model, settings)
        self.cut(model, settings)
        model.to_empty(device=device)
        initialise(model, spec.init, settings.seed, hold=filled_whole)
        self.fit(model)
        return model

    def cut(self, model: nn.Module, settings: Training) -> None:
        """Leave each process its part of the parameters."""
        raise NotImplementedError

    def fit(self, model: nn.Module) -> None:
        """Once the parts are filled: let the modules know how much of them is here, where they must."""

    def clip(self, parameters: list[nn.Parameter], limit: float | None) -> Tensor:
        """As in one process: the parts of all processes make one norm."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        parts = nn.utils.get_total_norm(locals_of(g for g in gradients if is_part(g))).square()
        dist.all_reduce(parts)
        copies = nn.utils.get_total_norm(locals_of(g for g in gradients if not is_part(g))).square()
        norm = (parts + copies.to(parts)).sqrt()
        if limit is not None:
            torch._foreach_mul_(locals_of(gradients), (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

"""Sharded models, however they are split: building, initialisation and gradient clipping."""

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
    """Base of sharded parallelism; `cut` decides how parameters are split."""

    shards = True

    @property
    def mesh(self) -> DeviceMesh:
        """A 1-D mesh of all processes."""
        return init_device_mesh(self.peers.device.type, (self.peers.world.size,))

    def build(self, spec: Network, settings: Training) -> Any:
        """Shard on `meta`, then initialise parameter by parameter: no process ever holds the whole model.

        Every process draws the same random numbers as a single process would, and keeps its shard. Parts from outside
        the library initialise themselves when built; such a model is built whole and then sharded.
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
        """Shard the parameters."""
        raise NotImplementedError

    def fit(self, model: nn.Module) -> None:
        """After initialisation: adjust modules that need to know their local sizes."""

    def clip(self, parameters: list[nn.Parameter], limit: float | None) -> Tensor:
        """As in a single process: the norm is over the shards of all processes."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        parts = nn.utils.get_total_norm(locals_of(g for g in gradients if is_part(g))).square()
        dist.all_reduce(parts)
        copies = nn.utils.get_total_norm(locals_of(g for g in gradients if not is_part(g))).square()
        norm = (parts + copies.to(parts)).sqrt()
        if limit is not None:
            torch._foreach_mul_(locals_of(gradients), (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

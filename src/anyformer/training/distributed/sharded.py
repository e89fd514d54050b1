"""`fsdp`: weights, gradients and optimizer in parts (torch's FSDP2, 2304.11277).

Each block is a group: its weights are gathered before its pass and forgotten after it, and its gradients are summed
into the parts. What several places use, tables above all, belongs to the group of the whole model, which stays gathered
from the first pass to the last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anyformer.core.block import BlockModule
from anyformer.core.building import has_outside_parts
from anyformer.core.init import initialise
from anyformer.core.model import Model, ModelModule, Seq2Seq, Seq2SeqModule
from anyformer.core.stack import StackModule
from anyformer.core.streams import Streams
from anyformer.core.towers import Towers
from anyformer.slots import Network
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.distributed.parts import filled_whole, is_part, locals_of
from anyformer.training.settings import Training

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class PartitionedParallel(Parallel):
    """What is the same for all models in parts, however they are cut."""

    shards = True

    @property
    def mesh(self) -> DeviceMesh:
        """All processes in a row."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.peers.device.type, (self.peers.world.size,))

    def build(self, spec: Network, settings: Training) -> Any:
        """Cut while it has shapes only, then filled parameter by parameter: no process ever holds the whole model.

        Every process draws the numbers that one process would draw, and keeps its part. Parts from outside the library
        set their own numbers when they are built; such a model is built whole and then cut.
        """
        device = self.peers.device
        if has_outside_parts(spec) or not isinstance(spec, Model | Seq2Seq | Streams | Towers):
            model = spec.build(seed=settings.seed, device=device)
            self.cut(model, settings)
            return model
        model = spec.build(device="meta")
        self.cut(model, settings)
        model.to_empty(device=device)
        initialise(model, spec.init, settings.seed, hold=filled_whole)
        return model

    def cut(self, model: nn.Module, settings: Training) -> None:
        """Leave each process its part of the parameters."""
        raise NotImplementedError

    def clip(self, parameters: list[nn.Parameter], limit: float | None) -> Tensor:
        """As in one process: the parts of all processes make one norm."""
        import torch.distributed as dist

        gradients = [p.grad for p in parameters if p.grad is not None]
        parts = nn.utils.get_total_norm(locals_of(g for g in gradients if is_part(g))).square()
        dist.all_reduce(parts)
        copies = nn.utils.get_total_norm(locals_of(g for g in gradients if not is_part(g))).square()
        norm = (parts + copies.to(parts)).sqrt()
        if limit is not None:
            torch._foreach_mul_(locals_of(gradients), (limit / (norm + 1e-6)).clamp(max=1.0))
        return norm


class ShardedParallel(PartitionedParallel):
    """`fsdp`: each process has its part of the rows and of every parameter."""

    splits_rows = True

    def cut(self, model: nn.Module, settings: Training) -> None:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        # Casting the inputs would copy the Context and break what its layers share.
        low = torch.bfloat16 if settings.precision == "bf16" else None
        policy = MixedPrecisionPolicy(
            param_dtype=low, reduce_dtype=torch.float32 if low else None, cast_forward_inputs=False
        )
        mesh = self.mesh
        for block in blocks_alone(model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        if isinstance(model, ModelModule | Seq2SeqModule):  # losses of words enter by this method
            register_fsdp_forward_method(model, "before_head")

    def backward(self, loss: Tensor, leaves: list[nn.Parameter] | None, *, last: bool) -> None:
        """FSDP2 takes the mean over the processes; losses here are sums."""
        (loss * self.peers.world.size).backward(inputs=leaves)

    def sum_loss(self, loss: Tensor) -> Tensor:
        import torch.distributed as dist

        dist.all_reduce(loss)
        return loss


def blocks_alone(model: nn.Module) -> list[nn.Module]:
    """Blocks that share nothing with another one, so that nobody needs their weights outside their own pass."""
    stacks = [module for module in model.modules() if isinstance(module, StackModule) and module.spec.groups is None]
    return [block for stack in stacks for block in stack.blocks if isinstance(block, BlockModule)]

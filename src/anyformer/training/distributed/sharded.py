"""`fsdp`: sharded weights, gradients and optimizer state (torch's FSDP2, 2304.11277).

Each block is an FSDP group: its weights are all-gathered before its pass and freed after it, and its gradients are
reduce-scattered. Parameters used in several places, embeddings above all, belong to the root group, which stays
gathered from the first pass to the last.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from anyformer.core.block import BlockModule
from anyformer.core.model import ModelModule, Seq2SeqModule
from anyformer.core.stack import StackModule
from anyformer.errors import UserError
from anyformer.nets.batch_norm import BatchNorm
from anyformer.nets.electra import ElectraModule
from anyformer.training.distributed.partitioned import PartitionedParallel
from anyformer.training.settings import Training


class ShardedParallel(PartitionedParallel):
    """`fsdp`: each process has its part of the rows and a shard of every parameter."""

    name = "fsdp"
    splits_rows = True

    def cut(self, model: nn.Module, settings: Training) -> None:
        # Casting the inputs would copy the Context and break the identities its layers rely on.
        low = torch.bfloat16 if settings.precision == "bf16" else None
        policy = MixedPrecisionPolicy(
            param_dtype=low, reduce_dtype=torch.float32 if low else None, cast_forward_inputs=False
        )
        # FSDP warns about modifying an output in place, which no objective does.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
        mesh = self.mesh
        for block in blocks_alone(model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        # Losses call these methods too.
        if isinstance(model, ModelModule | Seq2SeqModule):
            register_fsdp_forward_method(model, "before_head")
        if isinstance(model, ElectraModule):
            register_fsdp_forward_method(model, "read_hidden")

    def backward(self, loss: Tensor, leaves: list[nn.Parameter] | None, *, last: bool) -> None:
        """FSDP2 takes the mean over the processes; losses here are sums."""
        (loss * self.peers.world.size).backward(inputs=leaves)

    def sum_loss(self, loss: Tensor) -> Tensor:
        dist.all_reduce(loss)
        return loss


def check_shardable(model: nn.Module) -> None:
    """Reject models that sharded weights would break.

    Modules that update their own state in a forward pass would update a gathered copy, which is dropped.
    """
    if any(isinstance(module, BatchNorm) and not module.frozen for module in model.modules()):
        raise UserError("batch norm keeps running statistics, which fsdp would lose",
                        where="training.parallel", fix="use ddp")  # fmt: skip


def blocks_alone(model: nn.Module) -> list[nn.Module]:
    """Blocks without shared weights, which are not needed outside their own pass."""
    stacks = [module for module in model.modules() if isinstance(module, StackModule) and module.spec.groups is None]
    return [block for stack in stacks for block in stack.blocks if isinstance(block, BlockModule)]

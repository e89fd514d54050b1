"""`tensor`: the heads of attention and the channels of MLPs over processes (torch's tensor parallel, 1909.08053).

The first projection of a branch is cut by rows, so that each process computes its own heads or inner channels; the
second by columns, so that their results are summed once. Rows of `qkv` lie group by group and rows of a gated `up` in
pairs, so that an even cut is a right one. Everything else is in every process, and stays the same by doing the same.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from anyformer.core.block import BlockModule
from anyformer.core.ensemble import MemberLinear
from anyformer.errors import UserError
from anyformer.feeds.mlp import MLPModule
from anyformer.mixers.attention import AttentionModule
from anyformer.slots import HeadSizes, Relative
from anyformer.training.distributed.partitioned import PartitionedParallel
from anyformer.training.settings import Training

WHERE = "training.parallel"
OTHER = "use fsdp or ddp"


class TensorParallel(PartitionedParallel):
    """`tensor`: each process has all rows, and its heads and channels of attention and MLPs."""

    name = "tensor"

    def cut(self, model: nn.Module, settings: Training) -> None:
        mesh = self.mesh
        for module in branches(model):
            first, second = ("qkv", "out") if isinstance(module, AttentionModule) else ("up", "down")
            plan = {first: ColwiseParallel(), second: RowwiseParallel()}
            parallelize_module(module, mesh, plan, src_data_rank=None)

    def fit(self, model: nn.Module) -> None:
        """Attention has this process's heads only."""
        size = self.peers.world.size
        for module in branches(model):
            if isinstance(module, AttentionModule):
                heads, groups, channels, value_channels = module.sizes
                module.sizes = HeadSizes(heads // size, groups // size, channels, value_channels)

    def sum_weight(self, weight: int) -> int:
        """Every process has all targets."""
        super().sum_weight(weight)
        return weight


def branches(model: nn.Module) -> list[AttentionModule | MLPModule]:
    """The branches of blocks that can be cut; those that several blocks share come once, an expert's MLP does not."""
    blocks = [module for module in model.modules() if isinstance(module, BlockModule)]
    found = {id(part): part for block in blocks for part in (block.mixer, block.feed)}
    return [part for part in found.values() if isinstance(part, AttentionModule | MLPModule)]


def check_split(model: nn.Module, size: int) -> None:
    """Refuse a model whose attention and MLPs cannot be cut into `size` parts."""
    found = branches(model)
    if not found:
        raise UserError("the model has no Attention and no MLP to cut", where=WHERE, fix=OTHER)
    if any(isinstance(module, MemberLinear) for module in model.modules()):
        raise UserError("the members of an ensemble share layers that are not cut", where=WHERE, fix=OTHER)
    for module in found:
        if isinstance(module, MLPModule):
            check_divides("inner width", module.down.in_features, size)
            continue
        check_divides("heads", module.sizes.heads, size)
        check_divides("kv_heads", module.sizes.groups, size)
        kind = "qk_norm" if module.q_norm is not None else type(module.relative).__name__
        if module.q_norm is not None or not is_only_rotated(module.relative):
            raise UserError(f"{kind} belongs to all heads, and each process has some of them", where=WHERE, fix=OTHER)


def check_divides(what: str, count: int, size: int) -> None:
    if count % size:
        raise UserError(f"{what} {count} is not divisible by {size} processes", where=WHERE, fix=OTHER)


def is_only_rotated(relative: Relative) -> bool:
    """Whether relative positions act on each head by itself, without anything of its own for each."""
    kind = type(relative)
    return kind.bias is Relative.bias and kind.scores is Relative.scores and kind.values is Relative.values

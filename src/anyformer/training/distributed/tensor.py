"""`tensor`: attention heads and MLP channels split over processes (torch's tensor parallel, 1909.08053).

The first projection of a branch is split by output rows, so that each process computes its own heads or inner
channels; the second by input columns, so that one all-reduce sums the results. Rows of `qkv` are stored group by group
and rows of a gated `up` in pairs, so that an even split is correct. Everything else is replicated, and stays equal
because every process computes the same. Replicated parameters that meet only this process's heads or channels, such as
relative positions, norms of queries and keys, and adapters, have a partial gradient here; those are all-reduced.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from anyformer.core.block import BlockModule
from anyformer.core.ensemble import MemberLinear
from anyformer.core.stack import StackModule
from anyformer.errors import UserError
from anyformer.feeds.mlp import MLPModule
from anyformer.mixers.attention import AttentionModule
from anyformer.positions.some_heads import SomeHeads
from anyformer.slots import HeadSizes, Network, Relative
from anyformer.training.distributed.gradient_sum import GradientSum
from anyformer.training.distributed.partitioned import PartitionedParallel
from anyformer.training.lora import LoRALinear
from anyformer.training.settings import Training

WHERE = "training.parallel"
OTHER = "use fsdp or ddp"


class TensorParallel(PartitionedParallel):
    """`tensor`: each process has all rows and its own attention heads and MLP channels."""

    name = "tensor"

    def build(self, spec: Network, settings: Training) -> Any:
        model = super().build(spec, settings)
        shares = nn.ParameterList(shared_by_parts(model))
        self.gradients = GradientSum(shares) if any(p.requires_grad for p in shares) else None
        return model

    def backward(self, loss: Tensor, leaves: list[nn.Parameter] | None, *, last: bool) -> None:
        if last and self.gradients is not None:
            self.gradients.arm()
        loss.backward(inputs=leaves)
        if last and self.gradients is not None:
            self.gradients.wait()

    def cut(self, model: nn.Module, settings: Training) -> None:
        mesh = self.mesh
        for module in branches(model):
            first, second = linear_names(module)
            adapters = take_adapters([getattr(module, name) for name in (first, second)])
            plan = {first: ColwiseParallel(), second: RowwiseParallel()}
            parallelize_module(module, mesh, plan, src_data_rank=None)
            for layer, name, parameter in adapters:
                setattr(layer, name, parameter)

    def fit(self, model: nn.Module) -> None:
        """Set attention's head counts and relative positions to this process's share."""
        world = self.peers.world
        for module in branches(model):
            if isinstance(module, AttentionModule):
                heads, groups, channels, value_channels = module.sizes
                if module.relative.has_bias:
                    module.relative = own_heads(module.relative, heads, world.rank, world.size)
                module.sizes = HeadSizes(heads // world.size, groups // world.size, channels, value_channels)

    def sum_weight(self, weight: int) -> int:
        """Unchanged: every process has all targets."""
        super().sum_weight(weight)
        return weight


def branches(model: nn.Module) -> list[AttentionModule | MLPModule]:
    """The attention and MLP branches of blocks that can be split; shared ones once, without experts' MLPs."""
    blocks = [module for module in model.modules() if isinstance(module, BlockModule)]
    found = {id(part): part for block in blocks for part in (block.mixer, block.feed)}
    return [part for part in found.values() if isinstance(part, AttentionModule | MLPModule)]


def linear_names(module: AttentionModule | MLPModule) -> tuple[str, str]:
    """The layer that is split by output rows, and the one split by input columns."""
    return ("qkv", "out") if isinstance(module, AttentionModule) else ("up", "down")


def take_adapters(layers: list[nn.Module]) -> list[tuple[LoRALinear, str, nn.Parameter]]:
    """Remove adapters from their layers, since torch would split them too."""
    found = [(layer, name, layer.get_parameter(name)) for layer in layers if isinstance(layer, LoRALinear)
             for name in ("lora_A", "lora_B")]  # fmt: skip
    for layer, name, _ in found:
        delattr(layer, name)
    return found


def own_heads(relative: Relative, heads: int, rank: int, size: int) -> Relative:
    """Relative positions of the heads of one process."""
    named, of = (relative.heads, relative.of) if isinstance(relative, SomeHeads) else (tuple(range(heads)), heads)
    whole = relative.relative if isinstance(relative, SomeHeads) else relative
    count = heads // size
    return SomeHeads(relative=whole, heads=named[rank * count : (rank + 1) * count], of=of)


def shared_by_parts(model: nn.Module) -> list[nn.Parameter]:
    """Replicated parameters whose gradient is partial: each process uses them for its own heads or channels only."""
    owners: list[nn.Module | None] = []
    for block in (module for module in model.modules() if isinstance(module, BlockModule)):
        if isinstance(block.mixer, AttentionModule):
            cut = (block.mixer.qkv, block.mixer.out)
            owners += [block.relative, *(part for part in block.mixer.children() if part not in cut)]
    for stack in (module for module in model.modules() if isinstance(module, StackModule)):
        owners += list(stack.relatives)  # that all their layers are cut is checked before
    found = [p for owner in owners if owner is not None for p in owner.parameters()]
    for layer in (getattr(module, name) for module in branches(model) for name in linear_names(module)):
        if isinstance(layer, LoRALinear):
            found += [layer.lora_A, layer.lora_B]
    return list({id(p): p for p in found}.values())


def check_split(model: nn.Module, size: int) -> None:
    """Reject a model whose attention and MLPs cannot be split into `size` parts."""
    found = branches(model)
    if not found:
        raise UserError("the model has no Attention and no MLP to split", where=WHERE, fix=OTHER)
    if any(isinstance(module, MemberLinear) for module in model.modules()):
        raise UserError("the members of an ensemble share layers that cannot be split", where=WHERE, fix=OTHER)
    for module in found:
        if isinstance(module, MLPModule):
            check_divides("inner width", module.down.in_features, size)
            continue
        check_divides("heads", module.sizes.heads, size)
        check_divides("kv_heads", module.sizes.groups, size)
    for stack in (module for module in model.modules() if isinstance(module, StackModule)):
        check_positions(stack)


def check_positions(stack: StackModule) -> None:
    """Refuse learned positions that a layer in parts shares with one that every process computes whole."""
    for number, module in enumerate(stack.relatives):
        if not any(True for _ in module.parameters()):
            continue
        for which, at in zip(stack.order, stack.table_of, strict=True):
            mixer = stack.blocks[which].mixer
            if at == number and not isinstance(mixer, AttentionModule):
                raise UserError(f"attention shares learned positions with {type(mixer).__name__}, which is not cut",
                                where=WHERE, fix=OTHER)  # fmt: skip


def check_divides(what: str, count: int, size: int) -> None:
    if count % size:
        raise UserError(f"{what} {count} is not divisible by {size} processes", where=WHERE, fix=OTHER)

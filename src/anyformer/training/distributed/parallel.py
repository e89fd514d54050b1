"""How several processes share the work of a step, by the setting `training.parallel`.

| parallel | rows                 | weights, gradients, optimizer      | communication                             |
|----------|----------------------|------------------------------------|-------------------------------------------|
| ddp      | each rank its part   | all of them in every process       | sums of gradients, once a step            |
| fsdp     | each rank its part   | each rank one part of each         | weights layer by layer, sums of gradients |
| tensor   | every rank all rows  | each rank its heads and channels   | sums of activations, twice a layer        |
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.errors import UserError
from anyformer.slots import Network
from anyformer.training.distributed.peers import Peers
from anyformer.training.distributed.world import World
from anyformer.training.freezing import freeze
from anyformer.training.lora import add_adapters
from anyformer.training.settings import Config, Training


class Parallel:
    """A single process: all rows, all weights, no communication; also the interface of the others."""

    name: ClassVar[str] = "alone"  # as the setting has it
    shards: ClassVar[bool] = False  # whether a process holds only a part of the weights
    splits_rows: ClassVar[bool] = False  # whether a process takes only its part of a batch

    def __init__(self, peers: Peers) -> None:
        self.peers = peers

    @property
    def part(self) -> int:
        """Which part of a batch this process takes, of `parts`."""
        return self.peers.world.rank if self.splits_rows else 0

    @property
    def parts(self) -> int:
        return self.peers.world.size if self.splits_rows else 1

    def build(self, spec: Network, settings: Training) -> Any:
        """Build the network on its device, with the same initial weights as a single process."""
        model = spec.build(seed=settings.seed, device=self.peers.device)
        choose_trained(model, settings)
        return model

    def sum_weight(self, weight: int) -> int:
        """Sum of the target weights of all processes."""
        return self.peers.exchange(weight)

    def backward(self, loss: Tensor, leaves: list[nn.Parameter] | None, *, last: bool) -> None:
        """Backward pass of a micro-batch; after the last one gradients are summed over processes."""
        loss.backward(inputs=leaves)

    def sum_loss(self, loss: Tensor) -> Tensor:
        """Sum of the loss over processes."""
        return loss

    def clip(self, parameters: list[nn.Parameter], limit: float | None) -> Tensor:
        """Clip the gradients to the limit, if any; returns their norm."""
        if limit is None:
            return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        return nn.utils.clip_grad_norm_(parameters, limit)


def choose_trained(model: nn.Module, settings: Training) -> None:
    """Apply LoRA and freezing, before optimizers and gradient hooks are created."""
    add_adapters(model, settings.lora, settings.seed)
    freeze(model, settings.freeze)  # adapters too


def open_parallel(config: Config, peers: Peers) -> Parallel:
    """The parallelism of a run's settings with these processes."""
    check_processes(config, peers.world)
    if peers.world.is_alone:
        return Parallel(peers)
    kind = config.training.parallel  # what one process does not need is loaded here
    if kind == "fsdp":
        from anyformer.training.distributed.sharded import ShardedParallel

        return ShardedParallel(peers)
    if kind == "tensor":
        from anyformer.training.distributed.tensor import TensorParallel

        return TensorParallel(peers)
    from anyformer.training.distributed.replicated import ReplicatedParallel

    return ReplicatedParallel(peers)


def check_processes(config: Config, world: World) -> None:
    """Reject settings that do not work with several processes, before the first step."""
    if world.is_alone:
        return
    if len(config.objective.phases()) > 1:
        raise UserError(
            f"{type(config.objective).__name__} moves two networks in turn, which {world.size} processes cannot share",
            where="training.parallel", fix="train in one process",
        )  # fmt: skip
    kind, settings = config.training.parallel, config.training
    if kind in ("fsdp", "tensor"):
        check_parts(kind, config, world.size)
    if kind != "tensor":
        check_rows(settings.batch_size or 1, world)


def check_parts(kind: str, config: Config, size: int) -> None:
    """Reject settings that do not work with sharded weights."""
    from anyformer.training.distributed.sharded import check_shardable
    from anyformer.training.distributed.tensor import check_split

    if config.training.precision == "fp16":
        raise UserError(f"fp16 has one scale for all gradients, and {kind} leaves each process a part",
                        where="training.precision", fix="use bf16, or training.parallel=ddp")  # fmt: skip
    model = config.model.build(device="meta")
    if kind == "tensor":
        check_split(model, size)
    else:
        check_shardable(model)


def check_rows(batch_size: int, world: World) -> None:
    """Require that the full batch divides evenly over processes."""
    rest = batch_size % world.size
    if rest:
        near = [size for size in (batch_size - rest, batch_size - rest + world.size) if size]
        raise UserError(f"global batch {batch_size} is not divisible by {world.size} processes",
                        where="training.batch_size", fix=f"use --batch-size {' or '.join(map(str, near))}")  # fmt: skip

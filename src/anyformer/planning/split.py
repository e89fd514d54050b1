"""How a training splits over processes: what each holds, and what they send each other in a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anyformer.core.model import Model, Seq2Seq
from anyformer.planning.costs import ModelCosts
from anyformer.planning.devices import DeviceCeilings
from anyformer.planning.memory import TrainingMemory
from anyformer.planning.parameters import ParameterCount
from anyformer.slots import Network


@dataclass(frozen=True)
class ProcessPlan:
    """One way to share a step among processes, each with a device of its own and the whole plan's batch."""

    kind: str  # "ddp", "fsdp" or "tensor"
    memory: int  # bytes of one process at the peak
    sent: int  # bytes that one process sends in a step
    compute: float  # seconds of one process's own work
    exchange: float  # seconds of sending, were nothing computed meanwhile
    rows: int  # of all processes together
    note: str

    @property
    def seconds(self) -> tuple[float, float]:
        """A step at best, where sending hides behind computing, and at worst, where it does not."""
        return max(self.compute, self.exchange), self.compute + self.exchange


def split_plans(
    spec: Network, count: ParameterCount, costs: ModelCosts, memory: TrainingMemory, seconds: float, batch: int,
    processes: int, dtype: torch.dtype, device: DeviceCeilings,
) -> list[ProcessPlan]:  # fmt: skip
    """DDP, FSDP2 and tensor parallelism over so many processes of one machine; a ring sends (n-1)/n of everything."""
    n, ring = processes, (processes - 1) / processes
    gradients = count.learning * dtype.itemsize
    weights = count.total * dtype.itemsize
    held = memory.weights + memory.optimizer
    work = memory.activations + memory.loss
    found = [
        ProcessPlan("ddp", memory.peak, round(2 * ring * gradients), seconds, 2 * ring * gradients / device.link,
                  batch * n, "every process holds the whole model; gradients are averaged once a step"),
    ]  # fmt: skip
    # Weights are gathered for the forward and again for the backward pass, gradients scattered once.
    moved = ring * (2 * weights + gradients)
    widest = round(layer_size(spec, count) * dtype.itemsize)
    found.append(
        ProcessPlan("fsdp", held // n + 2 * widest + max(work, memory.gradients // n), round(moved), seconds,
                  moved / device.link, batch * n, "weights, gradients and optimizer in shares; a layer is gathered "
                  "as it runs")
    )  # fmt: skip
    layers = sum(stack.layers for stack in costs.stacks)
    streams = sum(stack.layers * stack.stream for stack in costs.stacks)
    if layers and n > 1:
        # Two sums of the stream a layer forward, two backward; what is not inside of layers stays whole.
        sent = 4 * 2 * ring * streams
        inside = count.by_part["attention"] + count.by_part["mlp"]
        share = inside / max(1, count.total)
        found.append(
            ProcessPlan("tensor", round(held * (1 - share + share / n)) + memory.loss
                      + round((memory.activations - streams) / n + streams), round(sent),
                      seconds * (1 - share + share / n), sent / device.link, batch,
                      "heads and channels in shares; every layer waits for sums of the stream")
        )  # fmt: skip
    return found


def layer_size(spec: Network, count: ParameterCount) -> float:
    """Parameters of a layer on average: FSDP holds one layer whole while the next is gathered."""
    models = [spec.encoder, spec.decoder] if isinstance(spec, Seq2Seq) else [spec] if isinstance(spec, Model) else []
    layers = sum(len(model.stack.layers) for model in models)
    return (count.by_part["attention"] + count.by_part["mlp"]) / layers if layers else float(count.total)

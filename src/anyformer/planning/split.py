"""Parallel training over several processes: memory of each, and communication per step."""

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
    """One kind of parallelism over processes with a device each; `rows` is the global batch size."""

    kind: str  # "ddp", "fsdp" or "tensor"
    memory: int  # peak bytes of one process
    sent: int  # bytes that one process sends in a step
    compute: float  # seconds of compute of one process
    exchange: float  # seconds of communication without overlap
    rows: int  # of all processes together
    note: str

    @property
    def seconds(self) -> tuple[float, float]:
        """Step time with full overlap of communication and compute, and without any."""
        return max(self.compute, self.exchange), self.compute + self.exchange


def split_plans(
    spec: Network, count: ParameterCount, costs: ModelCosts, memory: TrainingMemory, seconds: float, batch: int,
    processes: int, dtype: torch.dtype, device: DeviceCeilings,
) -> list[ProcessPlan]:  # fmt: skip
    """DDP, FSDP2 and tensor parallelism over processes of one machine; a ring sends (n-1)/n of all bytes."""
    n, ring = processes, (processes - 1) / processes
    gradients = count.learning * dtype.itemsize
    weights = count.total * dtype.itemsize
    held = memory.weights + memory.optimizer
    work = memory.activations + memory.loss
    found = [
        ProcessPlan("ddp", memory.peak, round(2 * ring * gradients), seconds, 2 * ring * gradients / device.link,
                  batch * n, "every process holds the whole model; gradients are averaged once a step"),
    ]  # fmt: skip
    # Weights are all-gathered for the forward and the backward pass, gradients reduce-scattered once.
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
        # Two all-reduces of the hidden states per layer forward, two backward; only layers are sharded.
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
    """Mean parameters of a layer: FSDP holds one unsharded layer while it gathers the next."""
    models = [spec.encoder, spec.decoder] if isinstance(spec, Seq2Seq) else [spec] if isinstance(spec, Model) else []
    layers = sum(len(model.stack.layers) for model in models)
    return (count.by_part["attention"] + count.by_part["mlp"]) / layers if layers else float(count.total)

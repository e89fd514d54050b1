"""The `anyformer plan` estimate of a run, for its own batches and this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from anyformer.amounts import binary_bytes, count_text
from anyformer.objectives import Batch
from anyformer.planning.devices import DeviceCeilings
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.measure import measure_ceilings
from anyformer.planning.model_plan import ModelPlan, plan
from anyformer.planning.text import duration
from anyformer.slots import Network
from anyformer.training.loader import Steps
from anyformer.training.setup.device_peaks import peak_flops

LOOKED_AT = 4  # steps whose text lengths are averaged


@dataclass(frozen=True)
class PlannedRun:
    """The plan of one micro-batch, with the number of micro-batches per step and of steps."""

    plan: ModelPlan
    parts: int
    steps: int

    @property
    def step_seconds(self) -> float:
        """Seconds per step: forward and backward of every micro-batch, then one update."""
        return self.plan.seconds_of_step(self.parts)

    @property
    def seconds(self) -> float:
        """Seconds for all steps, without evaluations."""
        return self.steps * self.step_seconds

    @property
    def flops(self) -> float:
        """FLOPs of the whole run."""
        return float(self.steps) * self.parts * self.plan.costs.step.flops

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        plan = self.plan
        return {
            "parameters": plan.parameters.total, "active_parameters": plan.parameters.active,
            "rows": plan.batch, "length": plan.length, "parts": self.parts, "steps": self.steps,
            "flops_per_token": plan.flops["training"], "flops": self.flops,
            "memory_bytes": plan.memory.peak, "memory_bytes_recomputed": plan.memory.peak_recomputed,
            "step_seconds": self.step_seconds, "seconds": self.seconds, "device": plan.device.title,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Log lines; the measured step time is logged below them."""
        plan, memory = self.plan, self.plan.memory
        count = f"{plan.parameters.total:,} parameters"
        if plan.parameters.active != plan.parameters.total:
            count += f" ({plan.parameters.active:,} active)"
        if plan.parameters.learning != plan.parameters.total:
            count += f" ({plan.parameters.learning:,} learn)"
        parts = f"{self.parts} x " if self.parts > 1 else ""
        return [
            f"plan     {count}, {count_text(plan.flops['training'], 'FLOP')} a token, "
            f"{count_text(self.flops, 'FLOP')} in all",
            f"plan     {binary_bytes(memory.peak)} to train: weights {binary_bytes(memory.weights)}, gradients "
            f"{binary_bytes(memory.gradients)}, optimizer {binary_bytes(memory.optimizer)}, "
            f"activations {binary_bytes(memory.activations)}",
            f"plan     {duration(self.step_seconds)} a step of {parts}{plan.tokens:,} tokens, "
            f"{duration(self.seconds)} for {self.steps:,} steps, by ceilings of {plan.device.title}",
        ]


def plan_run(
    spec: Network, steps: Steps, count: int, model: nn.Module, *, precision: str, device: torch.device
) -> PlannedRun:  # fmt: skip
    """Plan a run of `count` steps from its batches and the measured device; `model` tells what is trained."""
    rows, length, parts = look_at_steps(spec, steps, count)
    found = plan(
        spec, batch=rows, length=length,
        device=ceilings_for(device, precision), dtype=torch.float32 if precision == "fp32" else torch.bfloat16,
        learning=sum(p.numel() for p in model.parameters() if p.requires_grad),
    )  # fmt: skip
    return PlannedRun(found, parts, count)


def look_at_steps(spec: Network, steps: Steps, count: int) -> tuple[int, int | None, int]:
    """Rows per micro-batch, mean text length in tokens if there is text, and micro-batches per step."""
    seen = [steps[number] for number in range(min(LOOKED_AT, max(1, count)))]
    lengths = [length for micros in seen for batch in micros for length in text_lengths(spec, batch)]
    length = round(sum(lengths) / len(lengths)) if lengths else None
    return max(len(batch) for batch in seen[0]), length, len(seen[0])


def text_lengths(spec: Network, batch: Batch) -> Sequence[int]:
    """Lengths of a batch's text inputs, padding included; empty if no input has a length axis."""
    short, longer = (tree_leaves(blank_inputs(spec, 1, length).args) for length in (2, 3))
    given = tree_leaves(batch.inputs)
    if len(given) != len(short):
        return []
    return [have.shape[1] for have, a, b in zip(given, short, longer, strict=True)
            if isinstance(a, Tensor) and a.shape != b.shape and isinstance(have, Tensor)]  # fmt: skip


def ceilings_for(device: torch.device, precision: str) -> DeviceCeilings:
    """Measured ceilings of this machine; a GPU is measured in half precision and scaled by data sheets for float32."""
    found = measure_ceilings("cuda" if device.type == "cuda" else "cpu")
    if device.type != "cuda" or precision != "fp32":
        return found
    half, single = (peak_flops(found.title, kind) for kind in ("bf16", "fp32"))
    slower = single / half if half and single else 0.1
    return replace(found, products=slower * found.products, peak=slower * found.peak)

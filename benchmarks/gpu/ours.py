"""anyformer's own programs: the training step of the product, on a batch that is on the device already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from anyformer.kernels.compile import compile_function
from anyformer.objectives import Batch, Objective
from anyformer.slots import Network
from anyformer.training.duration import Plan
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine
from benchmarks.gpu.timing import Step

PLANNED_STEPS = 100_000


def settle(rows: int, device: torch.device) -> Training:
    """The settings that `anyformer train` settles on for a long run on this device; on a CPU nothing is compiled."""
    cuda = device.type == "cuda"
    return Training(steps=PLANNED_STEPS, batch_size=rows, micro_batch_size=rows, precision="bf16" if cuda else "fp32",
                    compile=cuda)  # fmt: skip


def build_engine(network: Network, objective: Objective, settings: Training, device: torch.device) -> TrainingEngine:
    """As the trainer makes it."""
    engine = TrainingEngine(network.build(seed=0, device=device), objective, settings, Plan(PLANNED_STEPS))
    if settings.compile is True:
        engine.compile()
    return engine


def training_step(
    network: Network, objective: Objective, batch: Batch, device: torch.device, settings: Training | None = None
) -> Step:
    """One step after the other on the same batch, with the settled settings if none are given."""
    settings = settings or settle(len(batch), device)
    # Weighed on the CPU, as the loader does it: nobody waits for the GPU to count the targets.
    numbers, micros = count(), [replace(batch, weight=objective.weight(batch)).to(device)]
    with deterministic_algorithms(settings.deterministic):
        engine = build_engine(network, objective, settings, device)

    def step() -> object:
        with deterministic_algorithms(settings.deterministic):
            return engine.step(next(numbers), micros)

    return step


@contextmanager
def deterministic_algorithms(wanted: bool) -> Iterator[None]:
    """As the trainer sets them with `training.deterministic`; other programs run between the steps of this one."""
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(wanted)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]  # type: ignore[attr-defined]


def inference_step(network: Network, inputs: tuple[Tensor, ...], device: torch.device) -> Step:
    """A forward pass without gradients, compiled, in bf16 on a GPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = network.build(seed=0, device=device).to(dtype).eval()
    compiled = compile_function(model) if device.type == "cuda" else model
    given = tuple(value.to(device, dtype) if value.is_floating_point() else value.to(device) for value in inputs)

    def step() -> object:
        with torch.inference_mode():
            return compiled(*given)

    return step


def text_batch(tokens: Tensor) -> Batch:
    """A batch of a language model from tokens (B,T+1): each place predicts the next."""
    return Batch((tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous(), torch.arange(len(tokens)))


def count_products(network: Network) -> int:
    """Parameters that take part in matrix products: N of the rule 6N + 12 L d T.

    Tables that are only looked up (positions; words, where the head has a table of its own) do no arithmetic.
    """
    model = network.build(seed=0, device="meta")
    looked_up: tuple[str, ...] = ("embed.position.", "embed.segment.")
    if any(name.startswith("head.weight") for name, _ in model.named_parameters()):
        looked_up += ("embed.table.",)
    return sum(p.numel() for name, p in model.named_parameters() if not name.startswith(looked_up))

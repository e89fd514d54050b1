"""`plan`: the cost of a model at a batch size and length on a device, without allocating anything."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from anyformer.core.model import Model
from anyformer.errors import UserError, check_range
from anyformer.planning.costs import ModelCosts, count_costs
from anyformer.planning.devices import DeviceCeilings, find_device
from anyformer.planning.inputs import LENGTH, tokens_of
from anyformer.planning.memory import CachePlan, TrainingMemory, cache_plans, training_memory
from anyformer.planning.no_compiler import without_compiler
from anyformer.planning.parameters import ParameterCount, count_parameters
from anyformer.planning.split import ProcessPlan, split_plans
from anyformer.planning.timing import PassTime, time_decode, time_step, time_use
from anyformer.presets import preset
from anyformer.slots import Network

MOST_ROWS = 2**20  # above, decoding is reported as never compute-bound


@dataclass(frozen=True)
class ModelPlan:
    """The estimated costs of a model."""

    name: str
    spec: Network = field(repr=False)
    batch: int
    length: int
    tokens: int  # of the batch
    dtype: torch.dtype
    device: DeviceCeilings
    processes: int
    parameters: ParameterCount
    costs: ModelCosts = field(repr=False)
    memory: TrainingMemory
    caches: list[CachePlan]
    step: PassTime
    prefill: PassTime
    decode: PassTime | None
    splits: list[ProcessPlan]
    price: float | None  # dollars an hour of one device
    train_tokens: float | None = None  # of the whole training, if known
    steps: int | None = None  # of a run, if it is one
    parts: int = 1  # micro-batches per step of it

    @property
    def flops(self) -> dict[str, float]:
        """FLOPs per token in training, in prefill, and of one decode step after `length - 1` tokens."""
        decode = self.costs.decode.flops / self.batch if self.decode is not None else None
        found = {"training": self.costs.step.flops / self.tokens, "prefill": self.costs.forward.flops / self.tokens}
        return found if decode is None else found | {"decode": decode}

    @property
    def tokens_per_second(self) -> float:
        """In training, on one device."""
        return self.tokens / self.step.total

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization of a training step, against the data sheet."""
        return self.costs.step.flops / self.step.total / self.device.peak

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Over all rows of the batch."""
        return None if self.decode is None else self.batch / self.decode.total

    @property
    def compute_bound_batch(self) -> int | None:
        """Batch size from which a decode step is compute-bound, ignoring the KV cache."""
        return None if self.decode is None else self.rows_to_bound(cache=False)

    @property
    def compute_bound_batch_with_cache(self) -> int | None:
        """The same with a full KV cache in every row; None if never, as each row adds more memory time than compute."""
        return None if self.decode is None else self.rows_to_bound(cache=True)

    def rows_to_bound(self, *, cache: bool) -> int | None:
        """Batch size at which compute and memory time are equal: weights are read once, but each row has its cache."""
        ops = self.costs.decode.ops.items()
        flops = sum(count * op.flops for op, count in ops if cache or op.kind == "product") / self.batch
        weights = sum(count * op.flops for op, count in ops if op.kind == "product") / self.batch / 2
        # With many rows every expert is used by some of them.
        weights *= self.dtype.itemsize * self.parameters.total / self.parameters.active
        held = (self.costs.cache + self.costs.cross) / self.batch if cache else 0
        spare = flops / self.device.products - held / self.device.bandwidth
        rows = weights / self.device.bandwidth / spare if spare > 0 else MOST_ROWS + 1
        return None if rows > MOST_ROWS else max(1, math.ceil(rows))

    @property
    def fits(self) -> bool:
        """Whether a training step fits the device."""
        return self.memory.peak <= self.device.memory

    def seconds_of_step(self, parts: int = 1) -> float:
        """Seconds of a step: forward and backward of `parts` micro-batches, then one optimizer update."""
        return parts * (self.step.total - self.step.update) + self.step.update

    @property
    def hours(self) -> float | None:
        """Hours of the whole training on one device, without evaluations."""
        if self.train_tokens is None:
            return None
        return self.train_tokens / (self.parts * self.tokens) * self.seconds_of_step(self.parts) / 3600

    @property
    def train_flops(self) -> float | None:
        """FLOPs of the whole training."""
        return None if self.train_tokens is None else self.train_tokens / self.tokens * self.costs.step.flops

    @property
    def cost(self) -> float | None:
        """Dollars of the whole training."""
        return None if self.hours is None or self.price is None else self.hours * self.price

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-compatible data."""
        return {
            "model": self.name, "batch": self.batch, "length": self.length, "tokens": self.tokens,
            "dtype": str(self.dtype).removeprefix("torch."), "device": asdict(self.device),
            "parameters": asdict(self.parameters), "flops_per_token": self.flops,
            "flops_by_part": self.costs.forward.by_part(), "fourier_flops": self.costs.forward.fourier,
            "step_flops": self.costs.step.flops,
            "memory": asdict(self.memory) | {"peak": self.memory.peak, "peak_recomputed": self.memory.peak_recomputed,
                                             "fits": self.fits},
            "kv_cache": [asdict(cache) for cache in self.caches],
            "kv_bytes_per_token": self.costs.cache / self.batch / self.length if self.decode is not None else None,
            "step_seconds": self.step.total, "step_time": asdict(self.step), "prefill_seconds": self.prefill.total,
            "decode_seconds": None if self.decode is None else self.decode.total,
            "tokens_per_second": self.tokens_per_second, "decode_tokens_per_second": self.decode_tokens_per_second,
            "mfu": self.mfu, "compute_bound_batch": self.compute_bound_batch,
            "compute_bound_batch_with_cache": self.compute_bound_batch_with_cache, "processes": self.processes,
            "splits": [asdict(split) | {"seconds": split.seconds} for split in self.splits],
            "training_tokens": self.train_tokens, "training_flops": self.train_flops, "steps": self.steps,
            "parts": self.parts, "hours": self.hours, "dollars": self.cost,
        }  # fmt: skip


def plan(
    spec: Network | str, *, batch: int = 1, length: int | None = None, device: str | DeviceCeilings = "h200",
    processes: int = 1, dtype: torch.dtype | None = None, train_tokens: float | None = None,
    price: float | None = None, name: str | None = None, learning: int | None = None,
) -> ModelPlan:  # fmt: skip
    """Estimate a model's parameters, FLOPs, memory, KV cache, time and parallelism; nothing is allocated.

    `spec` is a spec or the name of a preset; `length` the tokens of a text, by default the model's maximum, at most
    1,024. The dtype is bf16 on a GPU and float32 on a CPU unless given. `learning` is the number of trainable weights,
    if fewer than in the spec: some are frozen, or adapters are trained instead.

    >>> found = plan("gpt2", batch=8, length=1024)
    >>> found.parameters.total, found.caches[0].bytes // 8 // 1024
    (124439808, 36864)
    """
    network = preset(spec) if isinstance(spec, str) else spec
    check_range("plan", "batch", batch, 1, fix="use 1")
    check_range("plan", "processes", processes, 1, fix="use 1")
    place = find_device(device)
    kind = dtype if dtype is not None else torch.bfloat16 if place.kind == "gpu" else torch.float32
    texts = text_length_of(network, length)
    with without_compiler():
        count = count_parameters(network.build(device="meta"))
        costs = count_costs(network, batch, texts, kind)
    count = count if learning is None else replace(count, learning=learning)
    tokens = tokens_of(network, batch, texts)
    memory = training_memory(network, count, costs, tokens, kind, place)
    step = time_step(costs, count.learning, count.tensors, place)
    splits = (
        split_plans(network, count, costs, memory, step.total, batch, processes, kind, place) if processes > 1 else []
    )
    return ModelPlan(
        name=name or (spec if isinstance(spec, str) else type(network).__name__), spec=network, batch=batch,
        length=texts, tokens=tokens, dtype=kind, device=place, processes=processes, parameters=count, costs=costs,
        memory=memory, caches=cache_plans(network, costs, batch, texts, kind), step=step,
        prefill=time_use(costs.forward, place),
        decode=time_decode(costs.decode, place) if costs.decode.launches else None, splits=splits,
        price=place.price if price is None else price, train_tokens=train_tokens,
    )  # fmt: skip


def text_length_of(spec: Network, length: int | None) -> int:
    """The given length, or the maximum that every part of the model supports, at most LENGTH."""
    models = [part for _, part in spec.walk() if isinstance(part, Model)]
    limits = [model.embed.limit for model in models if model.embed.limit is not None]
    if length is not None and limits and length > min(limits):
        raise UserError(f"length {length} is more than the {min(limits)} positions of the model", where="plan",
                        fix=f"use --length {min(limits)}")  # fmt: skip
    return min([LENGTH, *limits]) if length is None else length

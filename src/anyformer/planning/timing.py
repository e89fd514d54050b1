"""Estimated time of passes: each operation takes its FLOPs and bytes at the rates of a device."""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.kernels.onednn import FEWEST, SMALL
from anyformer.planning.costs import ModelCosts
from anyformer.planning.devices import DeviceCeilings, HostPace, PairPace, rate_at
from anyformer.planning.trace import OpCost, PassCost

BYTES = 4  # of a float32 weight, the dtype for which two matmul libraries are used


@dataclass(frozen=True)
class PassTime:
    """Seconds of a pass, by cause."""

    products: float
    attention: float
    traffic: float  # memory-bound operations
    launches: float  # on a CPU the overhead of Python and torch's dispatcher
    update: float = 0.0  # of the optimizer

    @property
    def total(self) -> float:
        """The sum of all."""
        return self.products + self.attention + self.traffic + self.launches + self.update

    def plus(self, other: PassTime) -> PassTime:
        """The sum of two passes."""
        return PassTime(
            self.products + other.products, self.attention + other.attention, self.traffic + other.traffic,
            self.launches + other.launches, self.update + other.update,
        )  # fmt: skip


def time_of(
    cost: PassCost, device: DeviceCeilings, pace: HostPace | None = None, pairs: PairPace | None = None
) -> PassTime:  # fmt: skip
    """Seconds of a pass on a device; `pace` is the host overhead of a CPU, which cannot hide it, and `pairs` the speed
    of a CPU's attention, by default of the forward pass over full sequences.

    The times for bytes and FLOPs of an operation are added, where a roofline takes the larger of the two: a kernel
    overlaps them only in part, and the sum was the better estimate on every measured shape.
    """
    products = attention = traffic = launches = 0.0
    host = device.host
    function, drawn = (0.0, 0.0) if host is None else (host.function, host.drawn)
    read = device.bandwidth
    if host is not None:
        read = rate_at(host.reading, sum(count * op.weights for op, count in cost.ops.items() if op.kind == "product"))
    for op, count in cost.ops.items():
        moved = (op.bytes - op.weights) / device.bandwidth + op.weights / read
        fused = op.kind in ("pointwise", "fourier")  # fused into others, except for a fraction
        launches += count * (device.traffic if fused else 1.0)
        if op.kind == "product":
            products += count * (op.flops / product_rate(op, device) + moved) / device.share
        elif op.kind == "attention":
            work = op.visible / (device.products * device.attention)
            if host is not None:
                work = pairs_time(op, pairs or host.attends)
            attention += count * (max(work, moved) + op.numbers * function + op.drawn * drawn)
        else:  # Fourier transforms are memory-bound too
            traffic += count * (moved * device.traffic + op.numbers * function)
    waits = (launches + cost.unlisted) * device.launch
    if pace is not None:  # a CPU does not overlap compute and dispatch
        waits = (cost.launches + cost.beside) * pace.operation + cost.calls * pace.call
    return PassTime(products, attention, traffic, waits)


def product_rate(op: OpCost, device: DeviceCeilings) -> float:
    """FLOP/s of a matmul: on a CPU small ones are slower, and those of few rows use another library."""
    if device.host is None:
        return device.products
    each = op.flops / (op.experts or 1)
    return rate_at(device.host.large if is_large(op) else device.host.small, each)


def is_large(op: OpCost) -> bool:
    """Whether a matmul has the rows and the size for `kernels/onednn.py`; for experts, each expert's."""
    return op.flops / (op.experts or 1) >= 2 * SMALL and op.flops >= FEWEST * 2 * op.weights / BYTES


def pairs_time(op: OpCost, pace: PairPace) -> float:
    """Seconds of attention on a CPU, which also computes some masked pairs."""
    return op.pairs * pace.pair + op.computed * pace.flop


def time_use(cost: PassCost, device: DeviceCeilings) -> PassTime:
    """Seconds of an inference pass over full sequences."""
    return time_of(cost, device, None if device.host is None else device.host.use)


def time_decode(cost: PassCost, device: DeviceCeilings) -> PassTime:
    """Seconds of one decode step."""
    if device.host is None:
        return time_of(cost, device)
    return time_of(cost, device, device.host.decode, device.host.attends_one)


def time_step(costs: ModelCosts, parameters: int, tensors: int, device: DeviceCeilings) -> PassTime:
    """Seconds of one training step: forward, backward, and AdamW over the given number of weights and tensors."""
    host = device.host
    forward = time_of(costs.training, device, None if host is None else host.training)
    backward = time_of(costs.backward, device, *(() if host is None else (host.backward, host.attends_back)))
    each = 0.0 if host is None else tensors * host.tensor
    update = PassTime(0.0, 0.0, 0.0, 0.0, parameters * device.update / device.bandwidth + each)
    return forward.plus(backward).plus(update)

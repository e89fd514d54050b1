"""How long passes take: every operation as long as its products and its bytes need at the rates of a device."""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.planning.costs import ModelCosts
from anyformer.planning.devices import DeviceCeilings
from anyformer.planning.trace import PassCost


@dataclass(frozen=True)
class PassTime:
    """Seconds of a pass by what they go to."""

    products: float
    attention: float
    traffic: float  # operations that only move bytes
    launches: float
    update: float = 0.0  # of the optimizer

    @property
    def total(self) -> float:
        """All of them."""
        return self.products + self.attention + self.traffic + self.launches + self.update


def time_of(cost: PassCost, device: DeviceCeilings) -> PassTime:
    """Seconds of a pass on a device.

    Bytes and products of one operation are added, where a roofline takes the larger of the two: a kernel overlaps them
    in part only, and the sum was the better guess on every shape that was measured.
    """
    products = attention = traffic = launches = 0.0
    for op, count in cost.ops.items():
        moved = op.bytes / device.bandwidth
        fused = op.kind in ("pointwise", "fourier")  # into others, but for a share
        launches += count * (device.traffic if fused else 1.0)
        if op.kind == "product":
            products += count * (op.flops / device.products + moved) / device.share
        elif op.kind == "attention":
            attention += count * max(op.visible / (device.products * device.attention), moved)
        else:  # a Fourier transform is bound by memory too
            traffic += count * moved * device.traffic
    return PassTime(products, attention, traffic, (launches + cost.unlisted) * device.launch)


def time_step(costs: ModelCosts, parameters: int, device: DeviceCeilings) -> PassTime:
    """Seconds of one training step: forward, backward and AdamW over so many weights that learn."""
    found = time_of(costs.step, device)
    update = parameters * device.update / device.bandwidth
    return PassTime(found.products, found.attention, found.traffic, found.launches, update)

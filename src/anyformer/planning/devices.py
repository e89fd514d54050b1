"""Rooflines of devices. A plan is no better than these ceilings, so each names its source."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anyformer.errors import UserError, did_you_mean

GIB = 2**30


@dataclass(frozen=True)
class PairPace:
    """Speed of a CPU's fused attention: seconds per (query, key) pair of each head, and per FLOP."""

    pair: float  # independent of the channels, mostly the exponential
    flop: float


Rates = tuple[tuple[float, float], ...]  # (size, rate) pairs, ascending


def rate_at(rates: Rates, size: float) -> float:
    """The rate at a size, interpolated between measured ones, clamped at the ends.

    >>> rate_at(((10.0, 1.0), (1000.0, 3.0)), 100.0), rate_at(((10.0, 1.0), (1000.0, 3.0)), 1e6)
    (2.0, 3.0)
    """
    sizes, found = zip(*rates, strict=True)
    return float(np.interp(np.log(max(size, 1.0)), np.log(sizes), found))


@dataclass(frozen=True)
class HostPace:
    """Overhead of Python and torch's dispatcher in one kind of pass, in seconds, independent of tensor sizes."""

    operation: float  # per operation, views included
    call: float  # per module call


@dataclass(frozen=True)
class HostTimes:
    """Measured overheads and rates of a CPU. A GPU has none: its host launches kernels ahead of it."""

    use: HostPace  # a forward pass without gradients
    decode: HostPace  # one step of `generate`, with its overhead beside the forward pass
    training: HostPace
    backward: HostPace  # `call` is per module call of the forward pass
    tensor: float  # seconds per tensor of an optimizer step
    function: float  # seconds per element of exp, tanh or a norm, without the memory traffic
    drawn: float  # seconds per attention weight with dropout, which rules out a CPU's fused attention
    reading: Rates  # bytes of a pass's weights, and bytes/s at which matmuls read them
    large: Rates  # FLOPs of a matmul of many rows, and FLOP/s
    small: Rates  # the same for few rows or small sizes, where another library may be used
    attends: PairPace  # full sequences, forward
    attends_back: PairPace
    attends_one: PairPace  # one query with many keys, as in decoding


@dataclass(frozen=True)
class DeviceCeilings:
    """Achievable rates of large, well-shaped operations, not those of the data sheet."""

    name: str
    title: str
    kind: str  # "gpu" or "cpu"
    products: float  # FLOP/s of matmuls
    bandwidth: float  # bytes/s, read and written
    memory: int  # bytes
    peak: float  # FLOP/s of the data sheet, for MFU
    share: float  # fraction of both rates that matmuls reach inside a model
    attention: float  # fraction of the matmul rate that fused attention reaches, on visible pairs
    traffic: float  # fraction of the bytes of all other operations left after fusion
    launch: float  # launch overhead of an operation, in seconds
    update: int  # bytes that an optimizer step moves per weight
    link: float  # bytes/s to another device of the same machine
    price: float | None  # dollars an hour
    source: str
    price_source: str = ""
    host: HostTimes | None = None

    @property
    def balance(self) -> float:
        """The ridge point of the roofline, in FLOPs per byte."""
        return self.products / self.bandwidth


# The H200's fractions, its launch overhead and its update bytes were fitted to eleven training steps in
# benchmarks/results/torch2.11.0-cuda13.0-h200-2026-11-16-training.csv; benchmarks/plan_accuracy.py prints how well they
# hold. The A100 and the L4 are given the same.
H200 = DeviceCeilings(
    name="h200", title="NVIDIA H200 SXM 141 GB", kind="gpu", products=790e12, bandwidth=4.3e12, memory=139 * GIB,
    peak=989e12, share=0.82, attention=0.48, traffic=0.15, launch=2.5e-6, update=100, link=450e9, price=4.0,
    source="products and bandwidth measured on one H200 (torch 2.11, bf16; data sheet 989 TFLOP/s, 4.8 TB/s)",
    price_source="middle of 3.50 to 4.50 at specialised clouds, May 2026",
)  # fmt: skip
DEVICES: dict[str, DeviceCeilings] = {
    "h200": H200,
    "a100": replace(
        H200, name="a100", title="NVIDIA A100 SXM 80 GB", products=0.8 * 312e12, bandwidth=0.9 * 2.039e12,
        memory=79 * GIB, peak=312e12, link=300e9, price=1.3,
        source="data sheet 312 TFLOP/s bf16 and 2.039 TB/s, of which .8 and .9 as the H200 reaches; not measured",
        price_source="middle of 1.10 to 1.50 at specialised clouds, May 2026",
    ),
    "l4": replace(
        H200, name="l4", title="NVIDIA L4 24 GB", products=0.8 * 121e12, bandwidth=0.9 * 300e9, memory=22 * GIB,
        peak=121e12, link=16e9, price=None,
        source="data sheet 121 TFLOP/s bf16 and 300 GB/s, of which .8 and .9 as the H200 reaches; not measured",
        price_source="give --price",
    ),
    "laptop": DeviceCeilings(
        name="laptop", title="laptop CPU, 8 cores with AVX2", kind="cpu", products=400e9, bandwidth=50e9,
        memory=16 * GIB, peak=8 * 32 * 2.5e9, share=0.9, attention=0.5, traffic=1.0, launch=6e-6,
        update=30, link=10e9, price=None,
        source="assumed: 8 cores x 32 FLOPs a cycle x 2.5 GHz, .6 of it, two channels of DDR5; not measured",
        price_source="give --price",
    ),
    "cpu": DeviceCeilings(
        name="cpu", title="2 cores of an AMD EPYC Milan", kind="cpu", products=147e9, bandwidth=33e9, memory=8 * GIB,
        peak=156.6e9, share=0.9, attention=0.5, traffic=1.0, launch=6e-6,
        update=30, link=10e9, price=None,
        source="sgemm of 1024 and reads from memory measured; --measure does so for the machine at hand",
        price_source="give --price",
    ),
}  # fmt: skip


def find_device(name: str | DeviceCeilings) -> DeviceCeilings:
    """A device by name; ceilings are returned unchanged.

    >>> find_device("h200").title
    'NVIDIA H200 SXM 141 GB'
    """
    if isinstance(name, DeviceCeilings):
        return name
    if name not in DEVICES:
        raise UserError(f"unknown device {name!r}", where="--device", fix=did_you_mean(name, DEVICES))
    return DEVICES[name]

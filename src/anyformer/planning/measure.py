"""The ceilings of the machine at hand: matrix products, memory, and what one operation costs beside its work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from anyformer.planning.devices import DEVICES, DeviceCeilings

ROUNDS = 5
CHAIN = 500
SIDE = {"cpu": 768, "cuda": 8192}  # of the square product
STREAM = {"cpu": 2**24, "cuda": 2**30}  # bytes of the copy, far more than caches hold


def measure_ceilings(
    device: str | torch.device = "cpu", *, clock: Callable[[], float] = time.perf_counter
) -> DeviceCeilings:  # fmt: skip
    """What this machine reaches now, beside whatever else runs on it; takes about a second."""
    place = torch.device(device)
    base = DEVICES["h200" if place.type == "cuda" else "cpu"]
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    side = SIDE[place.type]
    a = torch.randn(side, side, device=place, dtype=dtype)
    out = torch.empty_like(a)
    products = 2 * side**3 / fastest(lambda: torch.mm(a, a, out=out), place, clock)
    x = torch.zeros(STREAM[place.type] // 4, device=place)
    y = torch.empty_like(x)
    bandwidth = 2 * x.nbytes / fastest(lambda: y.copy_(x), place, clock)
    small = torch.zeros(8, device=place)
    launch = fastest(lambda: chain(small.requires_grad_()), place, clock) / (2 * CHAIN)
    if place.type == "cuda":
        free, title = torch.cuda.get_device_properties(place).total_memory, torch.cuda.get_device_name(place)
        launch = base.launch  # steps are recorded there: how long Python takes does not count
    else:
        free, title = base.memory, f"this machine's CPU, threads: {torch.get_num_threads()}"
    source = f"measured now: product of side {side}, copy of {x.nbytes >> 20} MiB, a chain of additions and back"
    return replace(
        base, name="measured", title=title, products=products, bandwidth=bandwidth, launch=launch, memory=free,
        peak=products, price=None, price_source="give --price", source=source,
    )  # fmt: skip


def chain(x: torch.Tensor) -> None:
    """Many small operations, recorded by autograd and gone back through, as in a training step."""
    y = x
    for _ in range(CHAIN):
        y = y * 1.0
    y.sum().backward()


def fastest(work: Callable[[], object], place: torch.device, clock: Callable[[], float]) -> float:
    """Seconds of the fastest of a few rounds: what others take of a shared machine is no ceiling."""
    found = []
    for _ in range(ROUNDS):
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        began = clock()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        found.append(clock() - began)
    return min(found)

"""The ceilings of the machine at hand: matrix products, memory, and what Python takes beside the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from anyformer.kernels.onednn import is_faster, linear
from anyformer.planning.costs import count_once
from anyformer.planning.devices import DEVICES, DeviceCeilings, HostPace, HostTimes
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.timing import time_of
from anyformer.planning.trace import PassCost, answers_of
from anyformer.presets.decoders import gpt2, llama
from anyformer.presets.recurrent import tagger
from anyformer.slots import Network

ROUNDS = 5
REPEATS = 6  # passes of a small network in a round
SIDE = {"cpu": 768, "cuda": 8192}  # of the square product
STREAM = {"cpu": 2**24, "cuda": 2**30}  # bytes of the copy: on a CPU about what the activations of a small step are
NUMBERS = 2**16  # that functions are timed on: they stay in a cache
WIDTH, READ = 512, (2**21, 2**23, 2**24, 2**25, 2**26, 2**27)  # of square weights, and bytes of all of them
LENGTH = 8  # tokens that the small networks read: next to no work


def measure_ceilings(
    device: str | torch.device = "cpu", *, clock: Callable[[], float] = time.perf_counter
) -> DeviceCeilings:  # fmt: skip
    """What this machine reaches now, beside whatever else runs on it; takes about a second."""
    place = torch.device(device)
    base = DEVICES["h200" if place.type == "cuda" else "cpu"]
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    side = SIDE[place.type]
    a = torch.randn(side, side, device=place, dtype=dtype)
    products, small = (2 * side**3 / fastest(by, place, clock) for by in (lambda: linear(a, a), lambda: a @ a))
    x = torch.zeros(STREAM[place.type] // 4, device=place)
    y = torch.empty_like(x)
    bandwidth = 2 * x.nbytes / fastest(lambda: y.copy_(x), place, clock)
    source = f"measured now: product of side {side}, copy of {x.nbytes >> 20} MiB"
    found = replace(base, name="measured", products=products, bandwidth=bandwidth, peak=products, price=None,
                    price_source="give --price", source=source,
                    small_products=small if place.type == "cpu" and is_faster() else None)  # fmt: skip
    if place.type == "cuda":  # steps are recorded there: how long Python takes does not count
        memory, title = torch.cuda.get_device_properties(place).total_memory, torch.cuda.get_device_name(place)
        return replace(found, title=title, memory=memory)
    return replace(
        found, title=f"this machine's CPU, threads: {torch.get_num_threads()}", host=measure_host(found, clock),
        source=f"{source}, functions of {NUMBERS:,} numbers, passes of three small networks",
    )  # fmt: skip


def measure_host(device: DeviceCeilings, clock: Callable[[], float]) -> HostTimes:
    """What Python and torch's dispatcher take on a CPU.

    A chain of additions would tell what an operation takes and nothing of the Python between two of them, which is
    most of a small pass. So small networks are run that have next to no work to do: one with few operations in each
    module, one with more, and one whose loop over tokens is torch's own. Two numbers follow for each kind of pass: what
    an operation takes, and what a module's call takes beside its operations.
    """
    place = torch.device("cpu")
    numbers = torch.randn(NUMBERS // 128, 128)
    scale = torch.ones(128)

    def functions() -> None:
        F.gelu(numbers, approximate="tanh")
        F.silu(numbers)
        F.layer_norm(numbers, (128,), scale, scale)
        numbers.softmax(-1)

    read = 2 * numbers.nbytes / device.bandwidth
    function = max(0.0, fastest(functions, place, clock) / 4 - read) / NUMBERS
    drawn = fastest(lambda: F.dropout(numbers.softmax(-1), 0.1), place, clock) / NUMBERS
    reading = tuple((float(size), reading_rate(size, clock)) for size in READ)
    rows = [small_network(spec, device, clock) for spec in small_networks()]
    uses, trainings, backwards, tensors = zip(*rows, strict=True)
    tensor = sum(tensors) / len(rows)
    return HostTimes(pace(uses), pace(trainings), pace(backwards), tensor, function, drawn, reading)


def reading_rate(size: int, clock: Callable[[], float]) -> float:
    """Bytes a second that products of one row read, going round so many bytes of weights as decoding does."""
    weights = torch.randn(size // (4 * WIDTH**2), WIDTH, WIDTH)
    x = torch.randn(1, WIDTH)

    def products() -> None:
        for weight in weights:
            F.linear(x, weight)

    return weights.nbytes / fastest(products, torch.device("cpu"), clock)


def small_networks() -> list[Network]:
    return [
        gpt2(32, 2, 2, vocab=64, length=LENGTH, dropout=0.0), llama(32, 2, 2, 1, 64, vocab=64),
        tagger(32, 1, dropout=0.0),
    ]  # fmt: skip


Timed = tuple[PassCost, float]  # a pass and the seconds that it took beside its work


def small_network(
    spec: Network, device: DeviceCeilings, clock: Callable[[], float]
) -> tuple[Timed, Timed, Timed, float]:
    """Passes of use, of training and back, each with what it took, and the seconds of a tensor's update."""
    net = spec.build(seed=0)
    given = blank_inputs(spec, 1, LENGTH, device="cpu")
    costs = count_once(spec, 1, LENGTH, torch.float32)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    best = [float("inf")] * 4
    for _ in range(ROUNDS):
        with torch.no_grad():
            net.eval()(*given.args)
            began = clock()
            for _ in range(REPEATS):
                net(*given.args)
            took = [(clock() - began) / REPEATS, 0.0, 0.0, 0.0]
        net.train()
        for _ in range(REPEATS):  # one after the other as in a training: each pass finds the others' code in the cache
            times = [clock()]
            answers = answers_of(net(*given.args))
            times.append(clock())
            torch.autograd.backward(answers, [torch.full_like(x, 1e-3) for x in answers])
            times.append(clock())
            optimizer.step()
            optimizer.zero_grad()
            times.append(clock())
            took = [one + more / REPEATS for one, more in zip(took, [0.0, *np.diff(times).tolist()], strict=True)]
        best = [min(pair) for pair in zip(best, took, strict=True)]
    use, training, backward = (
        (cost, max(0.0, seconds - work_of(cost, device)))
        for cost, seconds in zip((costs.forward, costs.training, costs.backward), best[:3], strict=True)
    )
    return use, training, backward, best[3] / sum(1 for _ in net.parameters())


def work_of(cost: PassCost, device: DeviceCeilings) -> float:
    """Seconds of products and traffic."""
    found = time_of(cost, device)
    return found.total - found.launches


def pace(rows: Sequence[Timed]) -> HostPace:
    """What an operation and a call take, by least squares of the relative error; neither is below 0."""
    steps = np.array([[cost.launches + cost.beside, cost.calls] for cost, _ in rows], dtype=float)
    seconds = np.array([took for _, took in rows])
    equations = steps / np.maximum(seconds, 1e-9)[:, None]
    operation, call = np.linalg.lstsq(equations, np.ones(len(rows)), rcond=None)[0].tolist()
    if min(operation, call) < 0:
        operation, call = float(np.mean(seconds / steps.sum(1))), 0.0
    return HostPace(operation, call)


def fastest(work: Callable[[], object], place: torch.device, clock: Callable[[], float]) -> float:
    """Seconds of the fastest of a few rounds: what others take of a shared machine is not a ceiling."""
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

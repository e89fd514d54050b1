"""Measure the ceilings of this machine: matmul rate, memory bandwidth, and Python overhead."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from anyformer.generation import Generation, generate
from anyformer.kernels.onednn import linear
from anyformer.planning.costs import count_once
from anyformer.planning.devices import DEVICES, DeviceCeilings, HostPace, HostTimes, PairPace
from anyformer.planning.inputs import blank_inputs
from anyformer.planning.timing import time_of
from anyformer.planning.trace import PassCost, answers_of
from anyformer.presets.decoders import gpt2, llama
from anyformer.presets.recurrent import tagger
from anyformer.slots import Network

ROUNDS = 5
REPEATS = 6  # passes of a small network per round
SIDE = {"cpu": 768, "cuda": 8192}  # of the square matmul
STREAM = {"cpu": 2**24, "cuda": 2**30}  # bytes of the copy: on a CPU about the activations of a small training step
NUMBERS = 2**16  # elements on which functions are timed: they fit the cache
WIDTH, READ = 512, (2**21, 2**23, 2**24, 2**25, 2**26, 2**27)  # width of square weights, and bytes of all
SIDES = (32, 64, 128, 256, 512)  # of the square weights of matmuls, small to large
MANY = 256  # rows of those matmuls
WORK = 2**27  # FLOPs per timing
HEADS = ((8, 8, 128, 16), (4, 4, 128, 64))  # (rows, heads, tokens, channels) at which attention is timed
LENGTH = 8  # input tokens of the small networks: next to no compute
WRITTEN = (1, 7)  # tokens that they generate


def measure_ceilings(
    device: str | torch.device = "cpu", *, clock: Callable[[], float] = time.perf_counter
) -> DeviceCeilings:  # fmt: skip
    """What this machine reaches now, under its current load; takes about two seconds."""
    place = torch.device(device)
    base = DEVICES["h200" if place.type == "cuda" else "cpu"]
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    side = SIDE[place.type]
    a = torch.randn(side, side, device=place, dtype=dtype)
    products = 2 * side**3 / fastest(lambda: linear(a, a), place, clock)
    x = torch.zeros(STREAM[place.type] // 4, device=place)
    y = torch.empty_like(x)
    bandwidth = 2 * x.nbytes / fastest(lambda: y.copy_(x), place, clock)
    source = f"measured now: product of side {side}, copy of {x.nbytes >> 20} MiB"
    found = replace(base, name="measured", products=products, bandwidth=bandwidth, peak=products, price=None,
                    price_source="give --price", source=source)  # fmt: skip
    if place.type == "cuda":  # steps are CUDA graphs there: Python overhead does not count
        memory, title = torch.cuda.get_device_properties(place).total_memory, torch.cuda.get_device_name(place)
        return replace(found, title=title, memory=memory)
    return replace(
        found, title=f"this machine's CPU, threads: {torch.get_num_threads()}", host=measure_host(found, clock),
        source=f"{source}, functions of {NUMBERS:,} numbers, passes of three small networks",
    )  # fmt: skip


def measure_host(device: DeviceCeilings, clock: Callable[[], float]) -> HostTimes:
    """Measure the overhead of Python and torch's dispatcher on a CPU.

    A chain of additions would show the cost of an operation but not of the Python code between operations, which is
    most of a small pass. So small networks with next to no compute are timed: one with few operations per module, one
    with more, and one whose loop over tokens is inside torch. A fit then gives two numbers for each kind of pass: the
    overhead per operation and per module call.
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
    many, few = (tuple(product_rate(side, by, clock) for side in SIDES) for by in (linear, F.linear))
    paces = attention_paces(clock)
    work = HostTimes(
        *(HostPace(0.0, 0.0),) * 4, 0.0, function, drawn, reading, many, few, *paces,
    )  # fmt: skip
    device = replace(device, host=work)
    rows = [small_network(spec, device, clock) for spec in small_networks()]
    steps = [small_decoding(spec, device, clock) for spec in small_networks()[:2]]  # the third does not generate
    uses, trainings, backwards, tensors = zip(*rows, strict=True)
    tensor = sum(tensors) / len(rows)
    return replace(work, use=pace(uses), decode=pace(steps), training=pace(trainings), backward=pace(backwards),
                   tensor=tensor)  # fmt: skip


def reading_rate(size: int, clock: Callable[[], float]) -> float:
    """Bytes/s at which single-row matmuls read weights, cycling through `size` bytes of them as decoding does."""
    weights = torch.randn(size // (4 * WIDTH**2), WIDTH, WIDTH)
    x = torch.randn(1, WIDTH)

    def products() -> None:
        for weight in weights:
            F.linear(x, weight)

    return weights.nbytes / fastest(products, torch.device("cpu"), clock)


def product_rate(
    side: int, by: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], clock: Callable[[], float]
) -> tuple[float, float]:  # fmt: skip
    """FLOPs and FLOP/s of a matmul with square weights, timed over several calls."""
    x, weight = torch.randn(MANY, side), torch.randn(side, side)
    flops = 2 * MANY * side**2
    times = max(1, WORK // flops)

    def products() -> None:
        for _ in range(times):
            by(x, weight)

    return float(flops), times * flops / fastest(products, torch.device("cpu"), clock)


def attention_paces(clock: Callable[[], float]) -> list[PairPace]:
    """Speed of fused attention forward, backward and for one query, each solved from two shapes."""
    place, seconds, sizes = torch.device("cpu"), list[list[float]](), list[list[int]]()
    for shape in HEADS:
        q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
        out, newest = F.scaled_dot_product_attention(q, k, v), q[:, :, -1:].detach()
        grad = torch.randn_like(out)
        forward = partial(F.scaled_dot_product_attention, q, k, v)
        one = partial(F.scaled_dot_product_attention, newest, k.detach(), v.detach())
        back = partial(torch.autograd.grad, out, (q, k, v), grad, retain_graph=True)
        seconds.append([fastest(work, place, clock) for work in (forward, back, one)])
        pairs = math.prod(shape[:3]) * shape[2]
        sizes.append([pairs, 4 * pairs * shape[3]])
    found = []
    newest_of = 1 / HEADS[0][2]  # one query of HEADS' tokens: the number is the same in both shapes
    for at, share in enumerate(([1.0, 1.0], [1.0, 2.0], [newest_of, newest_of])):
        pair, flop = np.linalg.solve(np.array(sizes) * share, np.array(seconds)[:, at]).tolist()
        found.append(PairPace(max(pair, 0.0), max(flop, 0.0)))
    return found


def small_networks() -> list[Network]:
    return [
        gpt2(32, 2, 2, vocab=64, length=LENGTH, dropout=0.0), llama(32, 2, 2, 1, 64, vocab=64),
        tagger(32, 1, dropout=0.0),
    ]  # fmt: skip


Timed = tuple[PassCost, float]  # a pass and its measured overhead in seconds


def small_network(
    spec: Network, device: DeviceCeilings, clock: Callable[[], float]
) -> tuple[Timed, Timed, Timed, float]:
    """Inference, training forward and backward with their overheads, and seconds per tensor of an optimizer step."""
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
        for _ in range(REPEATS):  # in turn as in training, with the same pressure on the instruction cache
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


def small_decoding(spec: Network, device: DeviceCeilings, clock: Callable[[], float]) -> Timed:
    """Overhead of a step of `generate`, from the time difference between two numbers of tokens."""
    net, prompt = spec.build(seed=0).eval(), torch.zeros(1, 1, dtype=torch.long)
    few, many = (
        min(fastest(partial(generate, net, prompt, settings=Generation(max_new_tokens=count, eos_token_id=None)),
                    torch.device("cpu"), clock) for _ in range(2))
        for count in WRITTEN
    )  # fmt: skip
    cost = count_once(spec, 1, LENGTH, torch.float32).decode
    return cost, max(0.0, (many - few) / (WRITTEN[1] - WRITTEN[0]) - work_of(cost, device))


def work_of(cost: PassCost, device: DeviceCeilings) -> float:
    """Estimated seconds without launch overhead."""
    found = time_of(cost, device)
    return found.total - found.launches


def pace(rows: Sequence[Timed]) -> HostPace:
    """Overhead per operation and per call, by least squares of the relative error; both are at least 0."""
    steps = np.array([[cost.launches + cost.beside, cost.calls] for cost, _ in rows], dtype=float)
    seconds = np.array([took for _, took in rows])
    equations = steps / np.maximum(seconds, 1e-9)[:, None]
    operation, call = np.linalg.lstsq(equations, np.ones(len(rows)), rcond=None)[0].tolist()
    if min(operation, call) < 0:
        operation, call = float(np.mean(seconds / steps.sum(1))), 0.0
    return HostPace(operation, call)


def fastest(work: Callable[[], object], place: torch.device, clock: Callable[[], float]) -> float:
    """Seconds of the fastest of a few rounds, to exclude the load of a shared machine."""
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

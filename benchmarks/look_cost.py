"""What looking costs a training: steps with a probe every 100 of them beside steps without one, on a CPU.

    python benchmarks/look_cost.py [--rounds 20] [--every 100] [--csv FILE]

The model is nanoGPT's CPU size: 4 layers, 128 wide, 4 heads, 64 tokens, batch 12, 65 symbols; the probe asks for the
maps of one layer, or of all, on 4 rows. Single steps and single probes alternate, on one thread and by the processor's
time, so that a neighbour on the machine counts little; a step with probes is the median step and its share of the
median probe. The bar is 3 % for one layer. A second table: chosen rows of a 16,384-token input, and what they take
beside a whole map.
"""

from __future__ import annotations

import argparse
import csv
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from anyformer.inspection.capture import look
from anyformer.inspection.probe_figures import probe_figures
from anyformer.objectives import Batch, Causal
from anyformer.presets.decoders import gpt2
from anyformer.training.duration import Plan
from anyformer.training.optim import AdamW
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine

BATCH, LENGTH, VOCAB, ROWS, LONG = 12, 64, 65, 4, 16_384
LAYERS: dict[str, tuple[int, ...] | None] = {"no probe": (), "one layer": (2,), "all layers": None}


def trainer() -> tuple[TrainingEngine, Callable[[int], None], Batch]:
    """An engine, its step, and the rows of the probe."""
    net = gpt2(128, 4, 4, vocab=VOCAB, length=LENGTH, dropout=0.0).build(seed=0)
    settings = Training(precision="fp32", optimizer=AdamW(lr=1e-3), threads=1)
    engine = TrainingEngine(net, Causal(), settings, Plan(10**6))
    generator = torch.Generator().manual_seed(0)
    windows = [torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=generator) for _ in range(64)]
    rows = torch.arange(BATCH)

    def step(number: int) -> None:
        window = windows[number % len(windows)]
        engine.step(number, [Batch((window[:, :-1],), window[:, 1:], rows)])

    probed = windows[0][:ROWS]
    return engine, step, Batch((probed[:, :-1],), probed[:, 1:], rows[:ROWS])


def measure_training(rounds: int, every: int) -> dict[str, float]:
    """Milliseconds of a step alone, and of a step with its share of a probe every so many; medians over the rounds."""
    engine, step, batch = trainer()
    for number in range(10):
        step(number)
    for layers in LAYERS.values():
        probe(engine, batch, layers)
    steps: list[float] = []
    probes: dict[str, list[float]] = {name: [] for name in LAYERS}
    for number in range(rounds):
        steps += [timed(lambda number=number, i=i: step(number * 5 + i)) for i in range(5)]  # type: ignore[misc]
        for name, layers in LAYERS.items():
            probes[name].append(timed(lambda layers=layers: probe(engine, batch, layers)))  # type: ignore[misc]
    plain = statistics.median(steps)
    return {name: plain + statistics.median(values) / every for name, values in probes.items()}


def timed(work: Callable[[], None]) -> float:
    """Milliseconds of the processor."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e3


def probe(engine: TrainingEngine, batch: Batch, layers: tuple[int, ...] | None) -> None:
    """What the training loop does at a step of the probe."""
    if layers == ():
        return
    with engine.evaluating() as model:
        probe_figures(model, batch, layers=layers)


def measure_rows() -> dict[str, float]:
    """A few rows of one layer's maps over a long input: seconds, and MiB that the process grew by."""
    net = gpt2(32, 1, 4, vocab=VOCAB, length=LONG, dropout=0.0).build(seed=0)
    ids = torch.randint(VOCAB, (1, LONG), generator=torch.Generator().manual_seed(0))
    before, began = peak(), time.process_time()
    with torch.no_grad():
        net.eval()(ids)
    plain, passed = peak(), time.process_time() - began
    capture = look(net, ids, budget="4GB")
    chosen = capture.weights(0, rows=slice(LONG - 64, LONG))
    assert tuple(chosen.shape) == (4, 64, LONG)
    return {
        "forward s": passed, "look and rows s": time.process_time() - began - passed,
        "forward MiB": plain - before, "look and rows MiB": peak() - plain,
        "whole map MiB": 4 * LONG * LONG * 4 / 2**20,
    }  # fmt: skip


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure_rows()  # first: the peak of a process never falls
    steps = measure_training(asked.rounds, asked.every)
    table = [[name, f"{value:.3f}", f"{(value / steps['no probe'] - 1) * 100:+.2f} %"] for name, value in steps.items()]
    for name, value, drop in table:
        print(f"{name:<12} {value:>9} ms a step  {drop:>9}")
    for name, number in rows.items():
        print(f"{name:<20} {number:>10.2f}")
    if asked.csv is not None:
        with asked.csv.open("w", newline="") as file:
            csv.writer(file).writerows([["probe", "ms_a_step", "change"], *table, *rows.items()])


if __name__ == "__main__":
    main()

"""Seconds of a training step on a CPU: the engine beside the same model in a plain eager PyTorch loop.

The engine's step is compiled where `train` would compile a long run: not where oneDNN multiplies (kernels/onednn.py).

    python benchmarks/training_cost.py [--rounds 15] [--csv FILE]

The model is nanoGPT's CPU size: 4 layers, 128 wide, 4 heads, 64 tokens, batch 12, 65 symbols. Rounds alternate between
the two, so that a neighbour on the machine slows both; medians of the rounds are compared. Compiling is timed apart.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from anyformer.kernels import onednn
from anyformer.objectives import Batch, Causal
from anyformer.presets.decoders import gpt2
from anyformer.training.duration import Plan
from anyformer.training.optim import AdamW
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine

BATCH, LENGTH, VOCAB, STEPS = 12, 64, 65, 20  # steps of a round


def plain(windows: list[torch.Tensor]) -> Callable[[int], None]:
    """A loop as one would write it: forward, cross-entropy, backward, clip, fused AdamW."""
    net = gpt2(128, 4, 4, vocab=VOCAB, length=LENGTH, dropout=0.0).build(seed=0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, fused=True)

    def step(number: int) -> None:
        window = windows[number % len(windows)]
        logits = net(window[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def ours(windows: list[torch.Tensor]) -> Callable[[int], None]:
    """The training engine's own step, with all that it checks and keeps."""
    net = gpt2(128, 4, 4, vocab=VOCAB, length=LENGTH, dropout=0.0).build(seed=0)
    settings = Training(precision="fp32", optimizer=AdamW(lr=1e-3, betas=(0.9, 0.99)), threads=torch.get_num_threads())
    engine = TrainingEngine(net, Causal(), settings, Plan(10**6))
    if not onednn.is_faster():
        engine.compile()
    rows = torch.arange(BATCH)

    def step(number: int) -> None:
        window = windows[number % len(windows)]
        engine.step(number, [Batch((window[:, :-1],), window[:, 1:], rows)])

    return step


def seconds(step: Callable[[int], None], start: int) -> float:
    began = time.perf_counter()
    for number in range(start, start + STEPS):
        step(number)
    return (time.perf_counter() - began) / STEPS


def compare(rounds: int) -> dict[str, float]:
    """Medians of both, their ratio, and what compiling, or the first step, cost."""
    generator = torch.Generator().manual_seed(0)
    windows = [torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=generator) for _ in range(64)]
    torch.use_deterministic_algorithms(not onednn.is_faster())  # as a compiled run has it
    began = time.perf_counter()
    compiled = ours(windows)
    compiled(0)
    compiling = time.perf_counter() - began
    eager = plain(windows)
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for step in (eager, compiled):
        seconds(step, 0)
    for number in range(rounds):
        times["plain"].append(seconds(eager, number * STEPS))
        times["ours"].append(seconds(compiled, number * STEPS))
    torch.use_deterministic_algorithms(False)
    found = {name: statistics.median(values) for name, values in times.items()}
    ratios = [a / b for a, b in zip(times["ours"], times["plain"], strict=True)]
    return found | {"ratio": statistics.median(ratios), "compile": compiling}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    found = compare(asked.rounds)
    print(f"plain eager loop   {found['plain'] * 1e3:7.2f} ms a step")
    print(f"anyformer          {found['ours'] * 1e3:7.2f} ms a step, first step after {found['compile']:.1f} s")
    print(f"ratio              {found['ratio']:7.3f}")
    if asked.csv is not None:
        with asked.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["plain_seconds", "ours_seconds", "ratio", "compile_seconds", "threads", "torch"])
            writer.writerow([found["plain"], found["ours"], found["ratio"], found["compile"],
                             torch.get_num_threads(), torch.__version__])  # fmt: skip


if __name__ == "__main__":
    main()

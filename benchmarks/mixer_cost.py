"""What every mixer of tokens costs as the text grows: milliseconds of one layer, one sequence, one CPU thread.

    python benchmarks/mixer_cost.py [--longest 32768] [--width 256] [--rounds 7] [--csv benchmarks/results/NAME.csv]

Forward and backward through the whole mixer, its projections included, float32, causal where there is such a form. The
last column is the largest factor by which doubling the length multiplied the time from 8k tokens on (bar 2.2 for local,
block-sparse, low-rank and linear attention; full attention tends to 4). Times are those of the processor, not of the
clock on the wall, the least of several rounds, with memory that is kept between them.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time

import torch
from torch import nn

from anyformer.core.context import lay_out
from anyformer.core.init import initialise
from anyformer.mixers import (
    Attention,
    BlockSparse,
    Convolution,
    Hyena,
    LinearAttention,
    Local,
    LowRank,
    Plain,
    Recurrent,
)
from anyformer.positions.none import NoRelative
from anyformer.slots import Mixer

FROM = 8192  # where doubling is judged
PATIENCE = 2000.0  # milliseconds of a pass: beyond, it is run once and no longer text is tried


def mixers(longest: int) -> dict[str, tuple[Mixer, float | None]]:
    """By name, each with its bar."""
    return {
        "Attention(heads=4)": (Attention(heads=4), None),
        "Plain()": (Plain(), None),
        "Attention(heads=4, window=128)": (Attention(heads=4, window=128), None),
        "Local(heads=4, window=128)": (Local(heads=4, window=128), 2.2),
        "BlockSparse(heads=4, block=64)": (BlockSparse(heads=4, block=64), 2.2),
        f"LowRank(heads=4, rank=128, longest={longest})": (LowRank(heads=4, rank=128, longest=longest), 2.2),
        "LinearAttention(heads=4)": (LinearAttention(heads=4), 2.2),
        "Hyena()": (Hyena(), None),
        "Convolution(kernel=3)": (Convolution(kernel=3), None),
        "Recurrent()": (Recurrent(), None),
    }


def milliseconds(module: nn.Module, lengths: list[int], width: int, rounds: int) -> list[float]:
    """Of one pass at each length, taken in turns: a busy moment of the machine then slows all of them alike."""
    best: dict[int, float] = {}
    for _ in range(rounds):
        for length in lengths:
            before = best.get(length // 2, 0.0)
            if before > PATIENCE or best.get(length, 0.0) > PATIENCE:
                continue
            x = torch.randn(1, length, width, requires_grad=True)
            context = lay_out(1, length, x.device)
            start = time.process_time()
            module(x, context, None, ()).sum().backward()
            took = 1000 * (time.process_time() - start)
            best[length] = min(best.get(length, took), took)
    return [best[length] for length in lengths if length in best]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=32768)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lengths = [1024]
    while lengths[-1] < options.longest:
        lengths.append(2 * lengths[-1])
    print(f"{'milliseconds at':44}" + "".join(f"{length:>10,}" for length in lengths) + f"{'doubling':>10}")
    table = []
    for name, (mixer, bar) in mixers(options.longest).items():
        module = mixer.build(options.width, causal=mixer.causal_form, relative=NoRelative())
        if next(module.parameters(), None) is not None:
            initialise(module, "gpt2", 0)
        times = milliseconds(module, lengths, options.width, options.rounds)
        factors = [b / a for length, a, b in zip(lengths, times, times[1:], strict=False) if length >= FROM]
        worst = max(factors, default=float("nan"))
        said = "" if bar is None else f"  bar {bar}: {'kept' if worst <= bar else 'MISSED'}"
        print(
            f"{name:44}" + "".join(f"{t:>10.1f}" for t in times).ljust(10 * len(lengths)) + f"{worst:>10.2f}{said}",
            flush=True,
        )
        padded = [f"{t:.2f}" for t in times] + [""] * (len(lengths) - len(times))
        table.append([name, *padded, f"{worst:.2f}", "" if bar is None else bar])
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["mixer", *(f"ms_{length}" for length in lengths), "worst_doubling", "bar"])
            writer.writerows(table)
            writer.writerow(["torch", torch.__version__, "cpu", "1 thread", f"width {options.width}"])


if __name__ == "__main__":
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        # Else every tensor above 32 MB is fetched from the system anew and given back, and that would be measured.
        kept = {"MALLOC_MMAP_THRESHOLD_": str(2**34), "MALLOC_TRIM_THRESHOLD_": str(2**34)}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | kept)
    main()

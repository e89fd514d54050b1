"""Cost of the core on this machine: ratios to transformers and to plain allocation, all in one run.

    python benchmarks/core_cost.py [--rounds 5] [--csv benchmarks/results/NAME.csv]

forward+backward   GPT-2 124M, batch 2 x 256 tokens, float32, dropout off: ours / transformers (bar: 1.0)
build              building the gpt2 preset / allocating and normal-filling the same tensors (bar: 1.5)
import             seconds `import anyformer` adds to `import torch` (bar: 0.3)
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

import anyformer


def interleaved(rounds: int, **sides: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each side, taken in turns so that a busy machine slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for _ in range(rounds):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            times[name].append(time.perf_counter() - start)
    return times


def forward_backward(rounds: int) -> dict[str, list[float]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    theirs = GPT2LMHeadModel(config).train()
    off = {"embed.dropout": 0.0, "stack.block.dropout": 0.0, "stack.block.mixer.dropout": 0.0}
    ours = anyformer.replace_in(anyformer.preset("gpt2"), off).build(seed=0).train()
    tokens = torch.randint(0, 50257, (2, 256))
    targets = tokens.roll(-1, 1)

    def run_theirs() -> None:
        theirs.zero_grad()
        logits = theirs(input_ids=tokens, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()

    def run_ours() -> None:
        ours.zero_grad()
        logits = ours(tokens).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()

    return interleaved(rounds, ours=run_ours, theirs=run_theirs)


def building(rounds: int) -> dict[str, list[float]]:
    spec = anyformer.preset("gpt2")
    shapes = [p.shape for p in spec.build(device="meta").parameters()]
    return interleaved(
        rounds, ours=lambda: spec.build(), plain=lambda: [torch.empty(s).normal_(0.0, 0.02) for s in shapes]
    )


def importing(rounds: int) -> dict[str, list[float]]:
    def seconds(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    # A name is used, so that the lazy package really loads its parts.
    return interleaved(rounds, ours=seconds("import torch, anyformer; anyformer.Model"), torch=seconds("import torch"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--csv")
    options = parser.parse_args()
    rows = []
    for name, times, other, kind, bar in (
        ("forward+backward", forward_backward(options.rounds), "theirs", "ratio", 1.0),
        ("build", building(options.rounds), "plain", "ratio", 1.5),
        ("import", importing(options.rounds), "torch", "seconds", 0.3),
    ):
        ours, theirs = statistics.median(times["ours"]), statistics.median(times[other])
        figure = ours / theirs if kind == "ratio" else ours - theirs
        rows.append([name, f"{ours:.3f}", f"{theirs:.3f}", f"{figure:.3f}", kind, bar])
        print(f"{name:18} ours {ours:.3f} s, {other} {theirs:.3f} s, {kind} {figure:.3f} (bar {bar})")
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["what", "ours_s", "other_s", "figure", "kind", "bar"])
            writer.writerows(rows)
            threads = f"{torch.get_num_threads()} threads"
            writer.writerow(["torch", torch.__version__, "cpu", platform.machine(), threads, ""])


if __name__ == "__main__":
    main()

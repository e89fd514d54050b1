"""Milliseconds of Hyena and of attention, whole operators with projections, at equal tokens a batch and growing length.

    python benchmarks/hyena_cost.py [--csv FILE]                   width 128, forward and forward + backward
    python benchmarks/hyena_cost.py --device cuda [--csv FILE]     width 1024, bf16, forward + backward, compiled too

Prints what one sequence costs when its length doubles (T log T would be a little above 2, T^2 is 4) and the length from
which Hyena is faster. Both are causal, have projections in and out and the same width; attention has heads of 64.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.context import lay_out
from anyformer.core.init import initialise
from anyformer.mixers.attention import Attention
from anyformer.mixers.hyena import Hyena
from anyformer.positions.none import NoRelative
from anyformer.slots import Mixer

COLUMNS = ["device", "dtype", "width", "tokens", "length", "operator", "mode", "pass", "ms", "peak_gib", "torch"]


def module_of(mixer: Mixer, width: int, device: str, dtype: torch.dtype) -> nn.Module:
    module = mixer.build(width, causal=True, relative=NoRelative()).to(device)
    initialise(module, "gpt2", 0)
    return module.to(dtype)


def pass_of(module: nn.Module, x: Tensor, backward: bool) -> Callable[[], None]:
    """One pass over a batch (B,T,D), as a layer of a model in training or at rest."""
    context = lay_out(*x.shape[:2], x.device)
    upstream = torch.randn_like(x)

    def run() -> None:
        if not backward:
            with torch.no_grad():
                module(x, context, None, ())
            return
        x.grad = None
        for parameter in module.parameters():
            parameter.grad = None
        module(x, context, None, ()).backward(upstream)

    return run


def milliseconds(run: Callable[[], None], device: str, rounds: int, patience: float) -> float:
    """The median; what is slow is repeated less often, and what takes longer than `patience` not at all."""
    times = [seconds(run, device) for _ in range(3 if device == "cuda" else 1)]  # plans are made, code is compiled
    if times[-1] < patience:
        times = [seconds(run, device) for _ in range(max(1, min(rounds, int(patience / times[-1]))))]
    return statistics.median(times) * 1e3


def seconds(run: Callable[[], None], device: str) -> float:
    """Of the clock on a GPU; of the processor, for one thread, on a CPU: neighbours on the machine do not count."""
    if device == "cpu":
        began = time.process_time()
        run()
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for every operator, mode, pass and length."""
    cuda, rows = asked.device == "cuda", []
    dtype = torch.bfloat16 if cuda else torch.float32
    for length in asked.lengths:
        batch = max(1, asked.tokens // length)
        kinds: list[tuple[str, Mixer, str]] = [
            ("hyena", Hyena(order=asked.order, longest=length), "eager"),
            ("attention", Attention(heads=asked.width // 64), "eager"),
        ]
        if cuda:
            kinds.insert(1, ("hyena", Hyena(order=asked.order, longest=length), "compiled"))
        for backward in (True,) if cuda else (False, True):
            for name, mixer, mode in kinds:
                module = module_of(mixer, asked.width, asked.device, dtype)
                x = torch.randn(batch, length, asked.width, device=asked.device, dtype=dtype, requires_grad=True)
                if mode == "compiled":
                    torch._dynamo.reset()
                    module.compile(dynamic=False)
                if cuda:
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                try:
                    spent = milliseconds(pass_of(module, x, backward), asked.device, asked.rounds, asked.patience)
                except Exception as error:  # a device too small or a compiler that fails: the others are still measured
                    print(f"{name} {mode} at {length}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                    continue
                peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else float("nan")
                row = [asked.device, str(dtype).removeprefix("torch."), asked.width, batch * length, length, name, mode,
                       "forward+backward" if backward else "forward", round(spent, 3), round(peak, 2) if cuda else "",
                       torch.__version__]  # fmt: skip
                rows.append(dict(zip(COLUMNS, row, strict=True)))
                print(f"T {length:6d} x {batch:3d}  {name:9s} {mode:8s} {rows[-1]['pass']:16s} {spent:10.2f} ms"
                      + (f"  {peak:6.2f} GiB" if cuda else ""), flush=True)  # fmt: skip
    return rows


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Growth for one sequence per doubling, and where the lines cross, for each mode and pass."""
    lines = []
    for mode, kind in dict.fromkeys((row["mode"], row["pass"]) for row in rows if row["operator"] == "hyena"):
        mine = {
            row["length"]: row for row in rows if (row["operator"], row["mode"], row["pass"]) == ("hyena", mode, kind)
        }
        theirs = {row["length"]: row for row in rows if (row["operator"], row["pass"]) == ("attention", kind)}
        lines.append(f"{mode} {kind}: cost of one sequence when its length doubles, hyena / T log T / attention")
        for length in mine:
            if length * 2 in mine:
                both = length in theirs and length * 2 in theirs
                lines.append(f"  {length:6d} -> {2 * length:6d}  {growth(mine, length):5.2f}  "
                             f"{2 * math.log2(2 * length) / math.log2(length):5.2f}  "
                             + (f"{growth(theirs, length):5.2f}" if both else "    -"))  # fmt: skip
        lines.append(f"  hyena is faster {crossing(mine, theirs)}")
    return lines


def growth(rows: dict[int, dict[str, Any]], length: int) -> float:
    return rows[2 * length]["ms"] / rows[2 * length]["tokens"] * 2 * rows[length]["tokens"] / rows[length]["ms"]


def crossing(mine: dict[int, dict[str, Any]], theirs: dict[int, dict[str, Any]]) -> str:
    """The length at which both cost the same, between two measured ones on a line of logarithms."""
    ratios = [(length, math.log(theirs[length]["ms"] / mine[length]["ms"])) for length in mine if length in theirs]
    if not ratios or ratios[-1][1] < 0:
        return "at no measured length"
    if ratios[0][1] > 0:
        return f"at every measured length, from {ratios[0][0]}"
    at = next(i for i in range(len(ratios) - 1, -1, -1) if ratios[i][1] <= 0)
    (low, below), (high, above) = ratios[at], ratios[at + 1]
    share = -below / (above - below)
    return f"from about {round(low * (high / low) ** share)} tokens"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--width", type=int, help="128, on a GPU 1024")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--order", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024 << k for k in range(7)])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds for one figure, about")
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    asked.width = asked.width or (1024 if asked.device == "cuda" else 128)
    if asked.device == "cpu":
        torch.set_num_threads(1)
    else:
        print(torch.cuda.get_device_name(), "torch", torch.__version__, "cuda", torch.version.cuda)
    rows = measure(asked)
    print("\n".join(summary(rows)))
    if asked.csv is not None:
        asked.csv.parent.mkdir(parents=True, exist_ok=True)
        with asked.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

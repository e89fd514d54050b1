"""Tokens a second on a CPU: transformers' `generate` and ours, eager, compiled and in 8 bits, for GPT-2 124M.

    python benchmarks/decode_speed.py [--rounds 3] [--new 64] [--batches 1 8] [--threads 2] [--csv FILE]

Weights are random and the same for all; every one writes `--new` tokens greedily behind a prompt of 64. Rounds go
through all of them in turn, so that a neighbour on the machine slows each alike; ratios are of medians. The first call
of each, which compiles, is timed apart. `drafted` is float32, its tokens guessed by the same weights in 8 bits and
checked several at a time: the text is that of float32.
"""

from __future__ import annotations

import argparse
import copy
import csv
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # virtual machines may report AMX and not allow it
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import anyformer
from anyformer.generation import Generation, generate

PROMPT = 64
AHEAD = 7  # tokens guessed by a draft: with the one before them they are checked as eight
Write = Callable[[torch.Tensor, int], torch.Tensor]


def theirs() -> tuple[Write, torch.nn.Module]:
    """transformers with its defaults: a growing cache, nothing compiled."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()

    @torch.no_grad()
    def write(ids: torch.Tensor, new: int) -> torch.Tensor:
        mask = torch.ones_like(ids)
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0
        )
        return made[:, ids.shape[1] :]

    return write, model


def ours(model: object, draft: object = None) -> Write:
    def write(ids: torch.Tensor, new: int) -> torch.Tensor:
        settings = Generation(max_new_tokens=new, num_assistant_tokens=AHEAD)
        return generate(model, ids, settings=settings, draft=draft).new

    return write


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--only", nargs="+", help="these beside transformers")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    plain = anyformer.preset("gpt2").build(seed=0).eval()
    small = anyformer.quantise(copy.deepcopy(plain))
    fast, fast_small = anyformer.compiled(plain), anyformer.compiled(small)
    writers: dict[str, Write] = {
        "transformers": theirs()[0], "eager": ours(plain), "compiled": ours(fast), "drafted": ours(fast, fast_small),
        "int8 eager": ours(small), "int8": ours(fast_small),
    }  # fmt: skip
    rows = []
    for batch in asked.batches:
        ids = torch.randint(0, 50257, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
        names = [name for name in writers if asked.only is None or name in ("transformers", *asked.only)]
        first, rates, texts = {}, {name: [] for name in names}, {}
        for name in names:
            started = time.perf_counter()
            writers[name](ids, 16)
            first[name] = time.perf_counter() - started
        for _ in range(asked.rounds):
            for name in names:
                started = time.perf_counter()
                texts[name] = writers[name](ids, asked.new)
                rates[name].append(batch * asked.new / (time.perf_counter() - started))
        base = statistics.median(rates["transformers"])
        print(f"batch {batch}: {PROMPT} tokens read, {asked.new} written, {torch.get_num_threads()} threads, "
              f"load {os.getloadavg()[0]:.1f}")  # fmt: skip
        for name in names:
            middle = statistics.median(rates[name])
            print(f"  {name:13} {middle:7.1f} tokens/s  {middle / base:5.2f} x  "
                  f"({min(rates[name]):.1f} to {max(rates[name]):.1f}); first call {first[name]:.1f} s")  # fmt: skip
            rows.append({
                "name": name, "batch": batch, "new": asked.new, "tokens_per_second": round(middle, 2),
                "least": round(min(rates[name]), 2), "most": round(max(rates[name]), 2),
                "ratio": round(middle / base, 3), "first_call_seconds": round(first[name], 1),
                "threads": torch.get_num_threads(), "torch": torch.__version__, "load": round(os.getloadavg()[0], 1),
            })  # fmt: skip
        for name in ("compiled", "drafted"):
            if name in texts and "eager" in texts:
                same = bool(torch.equal(texts[name], texts["eager"]))
                print(f"  {name} wrote {'the same tokens as' if same else 'OTHER tokens than'} eager")
    if asked.csv is not None:
        with asked.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()

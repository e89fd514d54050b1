"""Training speed of GPT-2 124M on one GPU, ours beside transformers, synthetic tokens, fused AdamW, bf16 autocast.

    python benchmarks/device_training.py [--csv FILE]        needs a GPU; about 3 minutes with compilation

Prints ms a step, tokens a second and peak memory of each side, three rounds in turns, the median.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable

import torch

import anyformer

BATCH, LENGTH, STEPS = 32, 1024, 10


def ours() -> Callable[[], None]:
    off = {"embed.dropout": 0.0, "stack.block.dropout": 0.0, "stack.block.mixer.dropout": 0.0, "embed.vocab": 50304}
    model = anyformer.replace_in(anyformer.preset("gpt2"), off).build(seed=0, device="cuda")
    compiled = torch.compile(model)
    return stepper(model, lambda tokens: compiled(tokens).logits)


def theirs() -> Callable[[], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=50304, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config).cuda()
    compiled = torch.compile(model)
    return stepper(model, lambda tokens: compiled(input_ids=tokens, use_cache=False).logits)


def stepper(model: torch.nn.Module, logits_of: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], None]:
    tokens = torch.randint(0, 50257, (BATCH, LENGTH), device="cuda")
    targets = tokens.roll(-1, 1).flatten()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(logits_of(tokens).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds(step: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv")
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    rows = []
    for name, make in (("anyformer", ours), ("transformers", theirs)):
        torch.cuda.reset_peak_memory_stats()
        step = make()
        for _ in range(5):
            step()
        times = [seconds(step) for _ in range(3)]
        peak = torch.cuda.max_memory_allocated() / 2**30
        median = statistics.median(times)
        rows.append(
            [
                name,
                f"{median * 1e3:.1f}",
                f"{BATCH * LENGTH / median:.0f}",
                f"{peak:.1f}",
                f"{max(times) / min(times):.3f}",
            ]
        )
        print(f"{name:13} {median * 1e3:6.1f} ms/step  {BATCH * LENGTH / median:9,.0f} tokens/s  {peak:5.1f} GiB")
        del step
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    if options.csv:
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["system", "ms_per_step", "tokens_per_s", "peak_gib", "spread"])
            writer.writerows(rows)
            writer.writerow([torch.__version__, torch.version.cuda, torch.cuda.get_device_name(), "", ""])


if __name__ == "__main__":
    main()

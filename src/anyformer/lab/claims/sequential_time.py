"""A recurrent network takes its steps one after another: time of a training step as texts grow (L0, L2; R85)."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mean

import torch
from torch import nn

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.fit import lab_device
from anyformer.mixers import Attention, Recurrent
from anyformer.slots import Mixer

# A first form had width 128, where one thread is busy enough with 16 texts: RNN 2.0 times, GRU 3.6, LSTM 1.1.
WIDTH, VOCAB = 64, 64
MIXERS: dict[str, Mixer] = {
    "rnn": Recurrent("rnn"),
    "gru": Recurrent("gru"),
    "lstm": Recurrent("lstm"),
    "attention": Attention(heads=4),
}
RECURRENT = ("rnn", "gru", "lstm")
# Per token, a block's products take 24 WIDTH^2 and its scores 4 T WIDTH, all pairs counted: T / (6 WIDTH + T).
LITTLE = 0.25  # share of the scores up to which attention does not dominate: texts of 2 WIDTH tokens
FLAT, GROWN = 1.5, 2.0  # time of a step over that with the shortest texts: at most, at least


def cases(full: bool) -> list[Case]:
    tokens, longest, repeats = (65536, 16384, 5) if full else (4096, 2048, 3)
    lengths = [16 * 2**i for i in range(12) if 16 * 2**i <= longest]
    return [
        {"mixer": name, "length": length, "tokens": tokens, "repeat": repeat}
        for name in MIXERS for length in lengths for repeat in range(repeats)
    ]  # fmt: skip


def measure(case: Case) -> Result:
    device = lab_device(case["tokens"] > 4096)
    block = Block(mixer=MIXERS[case["mixer"]])
    stack = Stack(width=WIDTH, depth=1, causal=True, block=block)
    net = Model(embed=Tokens(vocab=VOCAB), stack=stack, head=LM()).build(seed=0, device=device)
    rows = case["tokens"] // case["length"]
    given = torch.randint(VOCAB, (rows, case["length"]), generator=torch.Generator().manual_seed(case["repeat"]))
    return {"seconds": step_time(net, given.to(device)), "device": device.type}


def step_time(net: nn.Module, given: torch.Tensor) -> float:
    """The fastest of three passes forward and backward after one to warm up.

    On a CPU it is the processor time of one thread, so that other programs do not count.
    """
    threads = torch.get_num_threads()
    gpu = given.device.type == "cuda"
    clock: Callable[[], float] = gpu_clock if gpu else time.process_time
    torch.set_num_threads(1)
    try:
        taken = []
        for _ in range(4):
            began = clock()
            net(given).logits.square().mean().backward()
            taken.append(clock() - began)
        return min(taken[1:])
    finally:
        torch.set_num_threads(threads)


def gpu_clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def scores_share(length: int) -> float:
    """Part of a Transformer block's FLOPs that is in the scores."""
    return length / (6 * WIDTH + length)


def judge(found: Measurements) -> Finding:
    lengths = sorted({case["length"] for case, _ in found.entries})
    short, long = lengths[0], lengths[-1]
    times = {name: {n: found.where(mixer=name, length=n).values("seconds") for n in lengths} for name in MIXERS}
    growth = {name: {n: mean(each[n]) / mean(each[short]) for n in lengths} for name, each in times.items()}
    before = max(n for n in lengths if scores_share(n) <= LITTLE)
    steady = max(value for n, value in growth["attention"].items() if n <= before)
    grown = [name for name in RECURRENT if growth[name][long] >= GROWN]
    dominated = growth["attention"][long] > FLAT
    verdict = Verdict.NOT_HERE
    if steady <= FLAT and grown:
        verdict = Verdict.HOLDS if len(grown) == len(RECURRENT) and dominated else Verdict.IN_PART
    last = ", ".join(f"{name} {growth[name][long]:.1f}x" for name in RECURRENT)
    others = ", ".join(name for name in RECURRENT if name not in grown)
    return Finding(
        measured=f"a step with texts of {long:,} tokens over one with {short}: {last}, attention "
        f"{growth['attention'][long]:.1f}x ({growth['attention'][before]:.2f}x at {before})",
        verdict=verdict,
        reason=f"{', '.join(grown) or 'no recurrence'} takes {GROWN:g} times as long or longer"
        + (f", {others} does not" if others else "")
        + f"; attention stays within {steady:.2f} times (bound {FLAT:g}) up to {before} tokens, where its scores are "
        f"{scores_share(before):.0%} of a block's FLOPs, and takes {growth['attention'][long]:.1f} times at {long:,}, "
        f"where they are {scores_share(long):.0%}",
        table=ResultTable(
            ("mixer", *(f"T = {n}" for n in lengths)),
            [
                (name, *(spread([1000 * value for value in times[name][n]], ".1f") + " ms" for n in lengths))
                for name in MIXERS
            ],
        ),
        plots=[
            Plot(
                "A training step at a fixed number of tokens", "tokens of a text", "ms",
                {name: [(n, 1000 * mean(times[name][n])) for n in lengths] for name in MIXERS},
                log_across=True, log_up=True,
            )
        ],
    )  # fmt: skip


CLAIM = Claim(
    name="sequential-time",
    claim="RNNs lack parallelism: with a fixed number of tokens per step, the time of a step grows with the length of "
    "the texts; a Transformer's does not until attention dominates",
    lecture="L0, L2",
    source="Cornell CS 4740, limitations of RNNs; 1706.03762, table 1",
    quoted="sequential operations: O(n) in a recurrent layer, O(1) in self-attention",
    method=f"one forward and backward pass of one block of width {WIDTH}, 4,096 tokens in texts of 16 to 2,048; "
    "processor time of one thread, the fastest of 3, three times (GPU time in the full form)",
    cost="44 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
    measures_time=lambda case: True,
)

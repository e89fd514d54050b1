"""Attention costs T^2, Hyena T log T: the length from which Hyena is faster (L0; R17)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.fit import lab_device
from anyformer.mixers import Attention, Hyena
from anyformer.slots import Mixer

SMALL_LENGTHS, SMALL_WIDTH = (128, 256, 512, 1024, 2048, 4096, 8192), 64
# The full form matches the published figures for the whole operator: width 1024, 65,536 tokens at every length.
FULL_LENGTHS, FULL_WIDTH, FULL_TOKENS = (1024, 2048, 4096, 8192, 16384, 32768, 65536), 1024, 65536
TAKEN = 4  # repetitions of a measurement; the fastest counts
QUADRATIC, NEARLY_LINEAR = 1.6, 1.35  # exponents of the time of a token row over the last doublings of the length
DOUBLINGS = 2  # of the length, over which the exponents are fitted


def cases(full: bool) -> list[Case]:
    lengths = FULL_LENGTHS if full else SMALL_LENGTHS
    return [{"length": length, "repeat": n, "full": full} for length in lengths for n in range(3 if full else 2)]


def mixers(width: int, length: int) -> dict[str, Mixer]:
    return {"attention": Attention(heads=width // 16 if width < 512 else width // 64), "hyena": Hyena(longest=length)}


def measure(case: Case) -> Result:
    length, full = case["length"], case["full"]
    width, rows = (FULL_WIDTH, FULL_TOKENS // length) if full else (SMALL_WIDTH, 1)
    device = lab_device(full)
    return {
        name: milliseconds(mixer, width, rows, length, device, case["repeat"])
        for name, mixer in mixers(width, length).items()
    }


def milliseconds(mixer: Mixer, width: int, rows: int, length: int, device: torch.device, seed: int) -> float:
    """Forward and backward pass of one operator with its projections, for one row of `length` tokens."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    stack = Stack(width=width, depth=1, causal=True, block=Block(mixer=mixer))
    net = Model(embed=Tokens(vocab=16), stack=stack).build(seed=seed, device=device, dtype=dtype)
    context = net.embed.layout(torch.zeros(rows, length, dtype=torch.long, device=device))
    part = net.stack.blocks[0].mixer
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, length, width, generator=generator).to(device, dtype).requires_grad_()
    taken = []
    for _ in range(1 + TAKEN):
        began = clock(device)
        part(x, context, None, ()).sum().backward()
        taken.append(clock(device) - began)
    return 1e3 * min(taken[1:]) / rows


def clock(device: torch.device) -> float:
    """Seconds of processor time, which other work on the machine does not affect; on a GPU, wall time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time()


def exponent(lengths: Sequence[int], times: Sequence[float]) -> float:
    """a in time = c T^a over the last doublings of the length."""
    return math.log(times[-1] / times[-1 - DOUBLINGS]) / math.log(lengths[-1] / lengths[-1 - DOUBLINGS])


def crossover(lengths: Sequence[int], attention: Sequence[float], hyena: Sequence[float]) -> tuple[float, bool]:
    """The length from which Hyena is faster, and whether it was measured; beyond the lengths it is extrapolated.

    0 if Hyena is faster at every length.
    """
    ratios = [math.log(h / a) for a, h in zip(attention, hyena, strict=True)]  # above 0: attention is faster
    slower = [at for at, ratio in enumerate(ratios) if ratio >= 0]
    if not slower:
        return 0.0, True
    at = slower[-1]
    if at + 1 < len(lengths):
        share = ratios[at] / (ratios[at] - ratios[at + 1])
        return lengths[at] * (lengths[at + 1] / lengths[at]) ** share, True
    closing = exponent(lengths, attention) - exponent(lengths, hyena)
    return (lengths[-1] * math.exp(ratios[-1] / closing) if closing > 0 else math.inf), False


def judge(found: Measurements) -> Finding:
    lengths = sorted({case["length"] for case, _ in found.entries})
    times = {name: [found.where(length=t).mean(name) for t in lengths] for name in ("attention", "hyena")}
    grows = {name: exponent(lengths, each) for name, each in times.items()}
    crossed, measured = crossover(lengths, times["attention"], times["hyena"])
    quadratic, nearly_linear = grows["attention"] >= QUADRATIC, grows["hyena"] <= NEARLY_LINEAR
    gain = times["attention"][-1] / times["hyena"][-1]
    verdict = Verdict.HOLDS if quadratic and nearly_linear and measured else Verdict.IN_PART
    if not nearly_linear or math.isinf(crossed):
        verdict = Verdict.NOT_HERE
    faster_at_all = "at every length measured" if crossed == 0 else f"from about {crossed:,.0f} tokens on"
    said = faster_at_all if measured else f"{faster_at_all} if both go on as they grow: longer than was measured"
    return Finding(
        measured=f"Hyena is faster {said}; at {lengths[-1]:,} tokens attention takes {gain:.1f} times as long",
        verdict=verdict,
        reason=f"over the last {DOUBLINGS} doublings attention's time grows as T^{grows['attention']:.2f} (at least "
        f"{QUADRATIC:g}) and Hyena's as T^{grows['hyena']:.2f} (at most {NEARLY_LINEAR:g}); the crossover was "
        f"{'measured' if measured else 'not reached and is extrapolated'}",
        table=ResultTable(
            ("tokens", "attention, ms a text", "Hyena, ms a text", "attention / Hyena"),
            [length_row(t, found.where(length=t)) for t in lengths],
        ),
        plots=[
            Plot(
                "forward and backward of one operator", "tokens", "ms a text",
                {name: list(zip(lengths, each, strict=True)) for name, each in times.items()},
                log_across=True, log_up=True,
            )
        ],
    )  # fmt: skip


def length_row(length: int, found: Measurements) -> tuple[str, ...]:
    ratios = [a / h for a, h in zip(found.values("attention"), found.values("hyena"), strict=True)]
    return (f"{length:,}", found.spread("attention"), found.spread("hyena"), spread(ratios, ".2f"))


CLAIM = Claim(
    name="hyena-crossover",
    claim="Attention's time grows as T^2, Hyena's only slightly faster than T: beyond some length Hyena is faster",
    lecture="L0",
    source="2302.10866, figure 4.3: order 2, batch 64, one A100",
    quoted="crossover with plain attention at 2k tokens, with FlashAttention between 4k and 8k, twice as fast at 8k, "
    "100 times as fast at 64k",
    method=f"forward and backward pass of one causal operator with its projections, width {SMALL_WIDTH}, one text, "
    f"processor time on a CPU; in the full form width {FULL_WIDTH}, {FULL_TOKENS:,} tokens a batch, bf16, on a GPU; "
    "attention uses a fused kernel",
    cost="32 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
    measures_time=lambda case: True,
)

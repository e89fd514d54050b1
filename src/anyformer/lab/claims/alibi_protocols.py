"""ALiBi beyond the trained length, evaluated with non-overlapping and with sliding windows (L3; R23, R81)."""

from __future__ import annotations

import math
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.claims.position_lengths import LENGTH, loss_of, network, texts, train
from anyformer.lab.fit import lab_device

KINDS, TIMES = ("alibi", "sinusoid"), (1, 2, 4, 8)
STEPS, LONG, TEXTS = 500, 4000, 24
SCORED = 64  # tokens at the end of every text that the sliding window predicts, each from a full window
AT_ONCE = 2**15  # tokens of a pass
GAIN, EXPLAINED, STEEP = 0.01, 0.5, 1.1


def cases(full: bool) -> list[Case]:
    steps, seeds = (LONG, 5) if full else (STEPS, 2)
    return [{"position": kind, "seed": seed, "steps": steps} for kind in KINDS for seed in range(seeds)]


def measure(case: Case) -> Result:
    net = network(case["position"]).build(seed=case["seed"], device=lab_device(case["steps"] == LONG))
    train(net, steps=case["steps"], seed=case["seed"])
    longest = TIMES[-1] * LENGTH
    ids = texts(TEXTS, longest + SCORED, torch.Generator().manual_seed(99))
    with torch.no_grad():
        return {
            "apart": [math.exp(apart(net, ids[:, : longest + 1], times * LENGTH)) for times in TIMES],
            "sliding": [math.exp(sliding(net, ids, times * LENGTH)) for times in TIMES],
        }


def apart(net: nn.Module, ids: Tensor, window: int) -> float:
    """Loss of all tokens of texts cut into non-overlapping windows: the first of each have hardly any context."""
    rows = ids.unfold(1, window + 1, window).flatten(0, 1)  # (N, window + 1): the last token is only predicted
    return mean(loss_of(net, part).item() for part in rows.split(max(1, AT_ONCE // window)))


def sliding(net: nn.Module, ids: Tensor, window: int) -> float:
    """Loss of the last tokens of every text, each predicted from exactly `window` tokens."""
    ids = ids.to(next(net.parameters()).device)
    rows = ids[:, -SCORED - window : -1].unfold(1, window, 1).flatten(0, 1)  # (N, window)
    logits = torch.cat([net(part).logits[:, -1] for part in rows.split(max(1, AT_ONCE // window))])
    return F.cross_entropy(logits, ids[:, -SCORED:].flatten()).item()


def judge(found: Measurements) -> Finding:
    curves = {(kind, way): found.where(position=kind).values(way) for kind in KINDS for way in ("apart", "sliding")}
    gains = {way: [curve[0] / curve[-1] - 1 for curve in curves["alibi", way]] for way in ("apart", "sliding")}
    there = min(gains["apart"]) >= GAIN  # without a gain there is nothing to explain
    left = [s / a for s, a in zip(gains["sliding"], gains["apart"], strict=True)] if there else [math.nan]
    explained = there and max(left) <= EXPLAINED
    rises = {way: min(curve[-1] / curve[0] for curve in curves["sinusoid", way]) for way in ("apart", "sliding")}
    fails = min(rises.values()) >= STEEP
    verdict = Verdict.HOLDS if explained and fails else Verdict.IN_PART if explained or fails else Verdict.NOT_HERE
    return Finding(
        measured=f"ALiBi at {TIMES[-1]}x: perplexity {-mean(gains['apart']):+.1%} with windows apart, "
        f"{-mean(gains['sliding']):+.1%} with a sliding window",
        verdict=verdict,
        reason=f"of the gain {spread(gains['apart'], '.1%')} of windows apart (at least {GAIN:.0%} asked) "
        f"{mean(left):.0%} is left where every token has a full window (at most "
        f"{EXPLAINED:.0%} of each seed): {'the rest is' if explained else 'it is not mostly'} fewer tokens early in a "
        f"window; sinusoids rise {rises['apart']:.2f} and {rises['sliding']:.2f} times at least (bound {STEEP:g})",
        table=ResultTable(
            ("positions, windows", *(f"{times}x" for times in TIMES)),
            [
                (f"{kind}, {way}", *(spread(column, ".3f") for column in zip(*each, strict=True)))
                for (kind, way), each in curves.items()
            ],
        ),
        plots=[
            Plot(
                f"trained at {LENGTH} tokens", "tokens of a window", "perplexity",
                {f"{kind}, {way}": [(t * LENGTH, mean(c)) for t, c in zip(TIMES, zip(*each, strict=True), strict=True)]
                 for (kind, way), each in curves.items()},
                log_across=True,
            )
        ],
    )  # fmt: skip


CLAIM = Claim(
    name="alibi-protocols",
    claim="ALiBi's gain beyond the trained length is mostly the early-token curse of non-overlapping windows: with a "
    "sliding window less than half of it is left, while sinusoids fail with both",
    lecture="L3",
    source="2108.12409, appendix B: WikiText-103, trained at 1024, evaluated up to 16024",
    quoted="perplexity of ALiBi: non-overlapping windows 18.66 to 17.98, a window sliding by one token 17.98 to 18.3; "
    "sinusoidal, sliding: 18.35 to 360",
    method=f"the networks and texts of position-lengths, {STEPS} steps at {LENGTH} tokens; {TEXTS} texts, first cut "
    f"into non-overlapping windows of 1 to {TIMES[-1]} times that length, then with each of the last {SCORED} tokens "
    "of a text predicted from a full window",
    cost="4 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

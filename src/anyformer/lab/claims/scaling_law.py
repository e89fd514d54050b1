"""Losses of small language models against size and tokens: which law, and bigger or longer? (L3; R38)"""

from __future__ import annotations

import pydoc_data.topics
from collections import Counter
from functools import cache
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.fit import fit, lab_device
from anyformer.mixers import Attention
from anyformer.planning import scaling
from anyformer.positions import Rope

SYMBOLS, WINDOW, ROWS = 64, 64, 16  # distinct characters; tokens of a text and texts of a step
TOKENS = WINDOW * ROWS  # of a step
SMALL_SIZES, SMALL_STEPS = ((16, 2), (32, 2), (48, 2), (64, 3)), (64, 128, 256, 512)
FULL_SIZES = ((16, 2), (32, 2), (48, 2), (64, 3), (96, 3), (128, 4))
# The longest reads the text four times: beyond, it teaches less (2305.16264).
FULL_STEPS = (64, 128, 256, 512, 1024, 1600)
# Fixed before the runs: Chinchilla's exponents of the best size lie between .46 and .50, Kaplan's is .73.
BALANCED = (0.35, 0.65)
FITS = 0.02  # root mean square of the error of log losses
HELD_OUT = 0.1


def cases(full: bool) -> list[Case]:
    sizes, lengths, seeds = (FULL_SIZES, FULL_STEPS, 3) if full else (SMALL_SIZES, SMALL_STEPS, 1)
    return [
        {"width": width, "depth": depth, "steps": steps, "seed": seed, "full": full}
        for width, depth in sizes for steps in lengths for seed in range(seeds)
    ]  # fmt: skip


@cache
def text() -> tuple[Tensor, Tensor]:
    """The language reference that comes with Python, as character ids: training text and held-out text."""
    written = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    frequent = [symbol for symbol, _ in Counter(written).most_common(SYMBOLS - 1)]
    number = {symbol: at for at, symbol in enumerate(frequent, 1)}  # 0 stands for all rarer characters
    ids = torch.tensor([number.get(symbol, 0) for symbol in written])
    cut = int(len(ids) * (1 - HELD_OUT))
    return ids[:cut], ids[cut:]


def network(width: int, depth: int) -> Model:
    block = Block(mixer=Attention(heads=4), relative=Rope())
    return Model(
        embed=Tokens(vocab=SYMBOLS), stack=Stack(width=width, depth=depth, causal=True, block=block), head=LM()
    )


def loss_of(net: nn.Module, rows: Tensor) -> Tensor:
    logits = net(rows[:, :-1]).logits
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def measure(case: Case) -> Result:
    device, (train, held_out) = lab_device(case["full"]), text()
    net = network(case["width"], case["depth"]).build(seed=case["seed"], device=device)

    def drawn(generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(train) - WINDOW - 1, (ROWS, 1), generator=generator)
        return loss_of(net, train[starts + torch.arange(WINDOW + 1)].to(device))

    steps = case["steps"]
    fit(net, drawn, steps=steps, seed=case["seed"], lr=4e-3 * (64 / case["width"]) ** 0.5, warmup=steps // 20)
    rows = held_out[: (len(held_out) - 1) // WINDOW * WINDOW + 1].unfold(0, WINDOW + 1, WINDOW)
    with torch.no_grad():
        loss = mean(loss_of(net, part.to(device)).item() for part in rows.split(256)[:-1] or [rows])
    return {"parameters": sum(p.numel() for p in net.parameters()), "tokens": steps * TOKENS, "loss": loss}


# ---------------------------------------------------------------- judgement


def judge(found: Measurements) -> Finding:
    runs = [scaling.TrainedRun(one["parameters"], one["tokens"], one["loss"]) for _, one in found.entries]
    fitted = scaling.fit(runs)
    law = fitted.law
    share, (low, high) = share_of_size(law), scaling.middle([share_of_size(one) for one in fitted.resampled])
    both = min(fitted.intervals["alpha"][0], fitted.intervals["beta"][0]) > 0
    fits, balanced = fitted.error <= FITS, BALANCED[0] <= share <= BALANCED[1]
    verdict = Verdict.HOLDS if both and fits and balanced else Verdict.IN_PART if both and fits else Verdict.NOT_HERE
    largest = max(runs, key=lambda run: run.parameters * run.tokens)
    better = law.better(largest.parameters, largest.tokens)
    flops = 6 * largest.parameters * largest.tokens
    return Finding(
        measured=f"the best size grows as C^{share:.2f} ({low:.2f} to {high:.2f}); alpha {bars(fitted, 'alpha')}, beta "
        f"{bars(fitted, 'beta')}; at the largest run {better} lowers the loss more",
        verdict=verdict,
        reason=f"both a larger size and more tokens {'lower' if both else 'do not surely lower'} the loss; the law "
        f"fits log losses to {fitted.error:.2%} (bound {FITS:.0%}); C^{share:.2f} is "
        f"{'within' if balanced else 'outside'} {BALANCED[0]:g} to {BALANCED[1]:g}; {ten_times(fitted, 10 * flops)}",
        table=ResultTable(
            ("", "here (middle 80 %)", "hoffmann", "besiroglu"),
            [law_row(name, fitted) for name in ("E", "A", "B", "alpha", "beta")]
            + [("size grows as C to the", f"{share:.2f} ({low:.2f} to {high:.2f})",
                *(f"{share_of_size(published(name)):.2f}" for name in ("hoffmann", "besiroglu")))],
        ),
        plots=[
            Plot(
                "loss of every run", "tokens", "nats a character",
                {f"{size / 1e3:,.0f}k": line(runs, size) for size in sorted({run.parameters for run in runs})},
                log_across=True,
            ),
            Plot(
                "the fitted law at equal FLOPs", "parameters", "nats a character",
                {f"{budget:.0e} FLOPs": valley(law, runs, budget) for budget in (flops / 10, flops, 10 * flops)},
                log_across=True,
            ),
        ],
    )  # fmt: skip


def ten_times(fitted: scaling.FittedLaw, flops: float) -> str:
    """What ten times the largest budget buys by the law, where it has an optimum."""
    if not fitted.law.has_optimum:
        return "the law has no best size"
    best, (least, most) = fitted.optimum(flops)
    return (f"ten times the largest budget, {flops:.1e} FLOPs, buys {best.parameters / 1e3:,.0f}k parameters "
            f"({least / 1e3:,.0f}k to {most / 1e3:,.0f}k) and {best.tokens / 1e6:.1f}M tokens")  # fmt: skip


def share_of_size(law: scaling.ScalingLaw) -> float:
    """a in N = c C^a at the optimum; tokens grow as C^(1 - a)."""
    return law.beta / (law.alpha + law.beta)


def published(name: str) -> scaling.ScalingLaw:
    law = scaling.LAWS[name]
    assert isinstance(law, scaling.ScalingLaw)
    return law


def bars(fitted: scaling.FittedLaw, name: str) -> str:
    low, high = fitted.intervals[name]
    return f"{getattr(fitted.law, name):.3g} ({low:.3g} to {high:.3g})"


def law_row(name: str, fitted: scaling.FittedLaw) -> tuple[str, ...]:
    return (name, bars(fitted, name), *(f"{getattr(published(law), name):.4g}" for law in ("hoffmann", "besiroglu")))


def line(runs: list[scaling.TrainedRun], size: float) -> list[tuple[float, float]]:
    tokens = sorted({run.tokens for run in runs if run.parameters == size})
    return [(t, mean(r.loss for r in runs if r.parameters == size and r.tokens == t)) for t in tokens]


def valley(law: scaling.ScalingLaw, runs: list[scaling.TrainedRun], flops: float) -> list[tuple[float, float]]:
    """Losses by size at fixed compute, over a slightly wider range than the sizes that were trained."""
    least, most = (choose(run.parameters for run in runs) for choose in (min, max))
    sizes = [least * (4 * most / least) ** (at / 30) for at in range(31)]
    return [(size, law.loss(size, flops / 6 / size)) for size in sizes]


CLAIM = Claim(
    name="scaling-law",
    claim="Loss follows E + A/N^alpha + B/D^beta, and a growing budget is best split evenly between larger models and "
    "longer training",
    lecture="L3",
    source="Hoffmann et al. 2022, arXiv 2203.15556, D.3: over 400 models of 70M to 16B parameters",
    quoted="alpha 0.34, beta 0.28: the best size grows as C^0.46 (0.49 and 0.50 by the paper's other two methods; "
    "Kaplan 0.73)",
    method="character-level rotary language models trained on the language reference that comes with Python, every "
    "size for every length with its own cosine schedule; the law is fitted to held-out losses by "
    "`planning.scaling.fit`, with error bars from refitting to resampled runs",
    cost="4 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

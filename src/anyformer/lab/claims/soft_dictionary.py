"""Attention is a soft dictionary look-up and a kernel average (L0-L3; R80)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from anyformer.core.attend import Scores, attend
from anyformer.core.context import lay_out
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.mixers import LinearAttention
from anyformer.positions import NoRelative

ENTRIES = 8
TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1e9)
LENGTHS = (128, 256, 512, 1024)
LOOKED_UP, SAME, NEAR = 1e-6, 1e-9, 0.15  # NEAR: how far a measured power of T may be from 1 and 2


def cases(full: bool) -> list[Case]:
    seeds = range(20 if full else 5)
    looked_up = [{"what": "dictionary", "temperature": t, "seed": seed} for t in TEMPERATURES for seed in seeds]
    kernels = [{"what": "kernel", "seed": seed} for seed in seeds]
    return [*looked_up, *kernels, *({"what": "cost", "length": length} for length in LENGTHS)]


def measure(case: Case) -> Result:
    if case["what"] == "dictionary":
        return look_up(case["temperature"], case["seed"])
    return kernel(case["seed"]) if case["what"] == "kernel" else cost(case["length"])


def look_up(temperature: float, seed: int) -> Result:
    """Every key queried once: how far the outputs are from the dictionary's values, and from their average."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(ENTRIES, 1, generator=generator, dtype=torch.float64)
    keys = torch.eye(ENTRIES, dtype=torch.float64)
    answers = attend(keys[None, None], keys[None, None], values[None, None], Scores(scale=1 / temperature))[0, 0]
    from_value, from_average = (answers - values).abs().max(), (answers - values.mean()).abs().max()
    return {"from_value": from_value.item(), "from_average": from_average.item()}


def kernel(seed: int) -> Result:
    """Softmax attention against the average under exp(q.k / sqrt(C)), the linear mixer against phi(q).phi(k)."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, 24, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    attention = attend(q, k, v, Scores(scale=1 / math.sqrt(8)))
    exponential = (q @ k.mT / math.sqrt(8)).exp()
    unscaled = (q @ k.mT).exp()  # the control: another kernel is another average

    mixer = LinearAttention(heads=2).build(16, causal=False, relative=NoRelative()).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        x = torch.randn(1, 24, 16, generator=generator, dtype=torch.float64)
        context = lay_out(1, 24, x.device)
        q, k, values = mixer.project(x, context)  # type: ignore[operator]
        features = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
        pairwise = mixer.out(average(features, values).transpose(1, 2).flatten(2))  # type: ignore[operator]
        linear = mixer(x, context, None, ())
    return {
        "softmax": (average(exponential, v) - attention).abs().max().item(),
        "other": (average(unscaled, v) - attention).abs().max().item(),
        "linear": (pairwise - linear).abs().max().item(),
    }


def average(weights: Tensor, values: Tensor) -> Tensor:
    """Nadaraya and Watson's: sum of kappa v over sum of kappa."""
    return weights @ values / weights.sum(-1, keepdim=True)


def cost(length: int) -> Result:
    """Operations of both orders of summing phi(q).phi(k) v: pair by pair, and over the keys first."""
    q, k, v = (torch.ones(length, 16) for _ in range(3))
    with FlopCounterMode(display=False) as pairs:
        (q @ k.T) @ v
    with FlopCounterMode(display=False) as sums:
        q @ (k.T @ v)
    return {"pairs": pairs.get_total_flops(), "sums": sums.get_total_flops()}


def judge(found: Measurements) -> Finding:
    dictionary, kernels = found.where(what="dictionary"), found.where(what="kernel")
    cold = max(dictionary.where(temperature=TEMPERATURES[0]).values("from_value"))
    hot = max(dictionary.where(temperature=TEMPERATURES[-1]).values("from_average"))
    between = min(dictionary.where(temperature=1.0).values("from_value"))
    softmax, linear, other = (max(kernels.values(name)) for name in ("softmax", "linear", "other"))
    powers = {name: power(found, name) for name in ("pairs", "sums")}
    looks = cold < LOOKED_UP < between and hot < LOOKED_UP
    averages = max(softmax, linear) < SAME < other
    cheaper = abs(powers["pairs"] - 2) < NEAR and abs(powers["sums"] - 1) < NEAR
    met = [looks, averages, cheaper]
    lines = {
        name: [(t, dictionary.where(temperature=t).mean(name)) for t in TEMPERATURES[:-1]]
        for name in ("from_value", "from_average")
    }
    return Finding(
        measured=f"|attention - dict[query]| {cold:.1e} at temperature {TEMPERATURES[0]:g}, "
        f"|attention - mean| {hot:.1e} at {TEMPERATURES[-1]:g}; |attention - kernel average| {softmax:.1e}",
        verdict=Verdict.HOLDS if all(met) else Verdict.IN_PART if any(met) else Verdict.NOT_HERE,
        reason=f"look-up within {LOOKED_UP:g}: {word(looks)} (at temperature 1 it is off by {between:.2g} or more); "
        f"kernel averages within {SAME:g}: {word(averages)} (linear mixer {linear:.1e}, unscaled kernel {other:.2g}); "
        f"cost T^{powers['pairs']:.2f} -> T^{powers['sums']:.2f} where kappa = phi(q).phi(k): {word(cheaper)}",
        table=ResultTable(
            ("temperature", "|attention - dict[query]|", "|attention - mean|"),
            [
                (f"{t:g}", each.spread("from_value", ".2g"), each.spread("from_average", ".2g"))
                for t, each in ((t, dictionary.where(temperature=t)) for t in TEMPERATURES)
            ],
        ),
        plots=(
            Plot(
                "From a dictionary to an average", "temperature", "largest difference",
                {"from dict[query]": lines["from_value"], "from the mean": lines["from_average"]},
                log_across=True, log_up=True,
            ),
            Plot(
                "Operations for T tokens under phi(q).phi(k)", "T", "FLOP",
                {"pair by pair": counts(found, "pairs"), "keys summed once": counts(found, "sums")},
                log_across=True, log_up=True,
            ),
        ),
    )  # fmt: skip


def word(met: bool) -> str:
    return "yes" if met else "no"


def counts(found: Measurements, name: str) -> list[tuple[float, float]]:
    return [(length, found.where(what="cost", length=length).mean(name)) for length in LENGTHS]


def power(found: Measurements, name: str) -> float:
    """p of cost ~ T^p between the shortest and the longest text."""
    (short, little), *_, (long, much) = counts(found, name)
    return math.log(much / little) / math.log(long / short)


CLAIM = Claim(
    name="soft-dictionary",
    claim="Attention is a soft dictionary look-up and a kernel average",
    lecture="L1",
    source="L0-L3; kernel view 1908.11775, 2006.16236",
    quoted="temperature -> 0: dict[query]; temperature -> infinity: the mean; weights kappa(q,k) / sum kappa",
    method="8 one-hot keys at 9 temperatures; 24 tokens in float64 against an explicit kernel average, for softmax "
    "attention and for linear attention; operations counted for both orders of summation at 128 to 1,024 tokens",
    cost="6 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

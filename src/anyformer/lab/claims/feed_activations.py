"""ReLU, GELU and gated feed-forward networks at equal parameters (L1, L3, L4; R11)."""

from __future__ import annotations

from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.feeds import MLP
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.fit import fit, lab_device
from anyformer.mixers import Attention
from anyformer.positions import Sinusoid

# Without biases: a gated MLP has three matrices, others two, so two thirds of the width give equal parameters.
FEEDS = {
    "ReLU": MLP(width=96, act="relu", bias=False),
    "GELU": MLP(width=96, act="gelu", bias=False),
    "GEGLU": MLP(width=64, act="gelu", gated=True, bias=False),
    "SwiGLU": MLP(width=64, act="silu", gated=True, bias=False),
}
GATED = ("GEGLU", "SwiGLU")
VOCAB, WIDTH, LENGTH, BATCH, EVERY = 16, 32, 16, 32, 20
SURE = 0.9  # share of tokens that follow from the two before
SMALL_STEPS, FULL_STEPS = 400, 4000
MOST = 0.8  # share of seeds in which one must be better than the other


def cases(full: bool) -> list[Case]:
    seeds, steps = (10, FULL_STEPS) if full else (5, SMALL_STEPS)
    return [{"feed": kind, "seed": seed, "steps": steps} for kind in FEEDS for seed in range(seeds)]


def measure(case: Case) -> Result:
    steps = case["steps"]
    net = network(case["feed"]).build(seed=case["seed"], device=lab_device(steps == FULL_STEPS))
    curve = fit(net, lambda generator: loss_of(net, BATCH, generator), steps=steps, seed=case["seed"], warmup=20)
    with torch.no_grad():
        validation = loss_of(net, 512, torch.Generator().manual_seed(99)).item()
    means = [mean(curve[at : at + EVERY]) for at in range(0, steps, EVERY)]
    return {"loss": validation, "curve": means, "parameters": sum(p.numel() for p in net.parameters())}


def network(kind: str) -> Model:
    stack = Stack(width=WIDTH, depth=2, causal=True, block=Block(mixer=Attention(heads=4), feed=FEEDS[kind]))
    embed = Tokens(vocab=VOCAB, position=Sinusoid(), scale=True)
    return Model(embed=embed, stack=stack, head=LM(tied=False), init="xavier")


def loss_of(net: nn.Module, rows: int, generator: torch.Generator) -> Tensor:
    device = next(net.parameters()).device
    ids = texts(rows, generator).to(device)
    logits = net(ids[:, :-1]).logits[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 2:].flatten())


def texts(rows: int, generator: torch.Generator) -> Tensor:
    """Ids (rows, LENGTH): a table of pairs gives the next token; attention alone only adds and cannot learn it."""
    table = torch.randint(VOCAB, (VOCAB, VOCAB), generator=torch.Generator().manual_seed(6))
    ids = torch.randint(VOCAB, (rows, LENGTH), generator=generator)
    follows = torch.rand(rows, LENGTH, generator=generator) < SURE
    for at in range(2, LENGTH):
        ids[:, at] = torch.where(follows[:, at], table[ids[:, at - 1], ids[:, at - 2]], ids[:, at])
    return ids


def judge(found: Measurements) -> Finding:
    losses = {kind: found.where(feed=kind).values("loss") for kind in FEEDS}
    smooth = wins(losses["GELU"], losses["ReLU"])
    gates = {kind: wins(losses[kind], losses["GELU"]) for kind in GATED}
    parameters = sorted(set(found.values("parameters")))
    smooth_better = mean(smooth) >= MOST
    gates_better = [mean(each) >= MOST for each in gates.values()]
    verdict = Verdict.NOT_HERE
    if len(parameters) == 1 and (smooth_better or any(gates_better)):
        verdict = Verdict.HOLDS if smooth_better and all(gates_better) else Verdict.IN_PART
    return Finding(
        measured="loss: " + ", ".join(f"{kind} {spread(values)}" for kind, values in losses.items()),
        verdict=verdict,
        reason=f"GELU is better than ReLU in {sum(smooth)} of {len(smooth)} seeds, "
        + " and ".join(f"{kind} than GELU in {sum(each)}" for kind, each in gates.items())
        + f" (bound {MOST:.0%} of the seeds); parameters "
        + ("are equal" if len(parameters) == 1 else f"differ: {parameters}"),
        table=ResultTable(
            ("feed", "inner width", "parameters", "loss", "against ReLU"),
            [
                (
                    kind, str(FEEDS[kind].width), f"{found.where(feed=kind).values('parameters')[0]:,}",
                    spread(losses[kind], ".4g"), f"{mean(losses[kind]) / mean(losses['ReLU']) - 1:+.1%}",
                )
                for kind in FEEDS
            ],
        ),
        plots=[training_plot(found)],
    )  # fmt: skip


def wins(ours: list[float], theirs: list[float]) -> list[bool]:
    """Compared seed by seed, on the same texts."""
    return [one < other for one, other in zip(ours, theirs, strict=True)]


def training_plot(found: Measurements) -> Plot:
    lines = {}
    for kind in FEEDS:
        curves = found.where(feed=kind).values("curve")
        lines[kind] = [((at + 1) * EVERY, mean(values)) for at, values in enumerate(zip(*curves, strict=True))]
    return Plot("Training at equal parameters", "step", "loss", lines)


CLAIM = Claim(
    name="feed-activations",
    claim="At equal parameters, GELU is better than ReLU, and gated networks are better than both",
    lecture="L1, L3, L4",
    source="2002.05202 (GLU variants), T5 base after 65k steps",
    quoted="log-perplexity: ReLU 1.997, GELU 1.983, GEGLU 1.942, SwiGLU 1.944",
    method=f"2 causal layers of width {WIDTH}, no biases in the feed-forward network, gated ones with two thirds of "
    "the inner width; in the texts a table of the two previous tokens gives the next one; loss on new texts, compared "
    "seed by seed",
    cost="5 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

"""Attention sees a set: permuting the tokens permutes the outputs, until positions are added (L2, L4; W04)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.mixers import Attention
from anyformer.positions import Alibi, Learned, NoRelative, Rope, Sinusoid

KINDS = ("none", "sinusoid", "learned", "rope", "alibi")
VOCAB, WIDTH, LENGTH = 50, 32, 12
EXACT, CLEAR = 1e-6, 1e-2


def cases(full: bool) -> list[Case]:
    return [{"position": kind, "seed": seed} for kind in KINDS for seed in range(10 if full else 3)]


def network(kind: str) -> Model:
    absolute = {"sinusoid": Sinusoid(), "learned": Learned(LENGTH)}.get(kind)
    relative = {"rope": Rope(), "alibi": Alibi()}.get(kind, NoRelative())
    block = Block(mixer=Attention(heads=4), relative=relative)
    stack = Stack(width=WIDTH, depth=2, causal=False, block=block)
    return Model(embed=Tokens(vocab=VOCAB, position=absolute), stack=stack, head=LM())


def measure(case: Case) -> Result:
    net = network(case["position"]).build(seed=case["seed"], dtype=torch.float64).eval()
    generator = torch.Generator().manual_seed(case["seed"])
    for parameter in net.parameters():  # as large as trained weights: with the usual init positions hardly matter
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    tokens = torch.randint(VOCAB, (1, LENGTH), generator=generator)
    order = torch.randperm(LENGTH, generator=generator)
    with torch.no_grad():
        plain, permuted = net(tokens).logits, net(tokens[:, order]).logits
    equivariance = (permuted - plain[:, order]).abs().max().item()
    invariance = (permuted - plain).abs().max().item()
    return {"equivariance": equivariance, "invariance": invariance}


def judge(found: Measurements) -> Finding:
    by_kind = {kind: found.where(position=kind) for kind in KINDS}
    rows = [
        (kind, max_text(each.values("equivariance")), max_text(each.values("invariance")))
        for kind, each in by_kind.items()
    ]
    without = max(by_kind["none"].values("equivariance"))
    with_any = min(value for kind in KINDS[1:] for value in by_kind[kind].values("equivariance"))
    moved = min(by_kind["none"].values("invariance"))
    holds = without <= EXACT and with_any >= CLEAR and moved >= CLEAR
    reason = "equivariant without positions, not invariant (erratum 15), and positions end it"
    return Finding(
        measured=f"|f(RX) - R f(X)| {without:.1e} without positions, at least {with_any:.2g} with any kind",
        verdict=Verdict.HOLDS if holds else Verdict.NOT_HERE,
        reason=reason if holds else f"a bound is broken: {EXACT:g} without positions, {CLEAR:g} with them",
        table=ResultTable(("positions", "|f(RX) - R f(X)|", "|f(RX) - f(X)|"), rows),
        plots=[
            Plot(
                "does a permutation pass through?", "seed", "|f(RX) - R f(X)|",
                {kind: list(enumerate(each.values("equivariance"))) for kind, each in by_kind.items()},
                log_up=True, apart=True,
            )
        ],
    )  # fmt: skip


def max_text(values: Sequence[float]) -> str:
    return f"{max(values):.2g}"


CLAIM = Claim(
    name="permutation",
    claim="Self-attention without positions is permutation-equivariant",
    lecture="L4",
    source="EPFL CS-433, proof on the slides; L3 says invariant",
    quoted="f(RX) = R f(X)",
    method="two bidirectional blocks in float64 on 12 random tokens and a random permutation, with and without "
    "positions",
    cost="1 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

"""Gradients over distance: they vanish in an RNN, while attention needs a single step (L0, L2)."""

from __future__ import annotations

from statistics import geometric_mean

import torch

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.mixers import Attention, Recurrent
from anyformer.slots import Mixer

MIXERS: dict[str, Mixer] = {
    "rnn": Recurrent("rnn"),
    "gru": Recurrent("gru"),
    "lstm": Recurrent("lstm"),
    "attention": Attention(heads=4),
}
WIDTH, VOCAB, LENGTH, TEXTS = 64, 64, 128, 16
FAR, SHOWN = 64, (1, 4, 16, 64, 127)
GONE, KEPT = 1e-3, 0.1  # of the gradient at distance 0: less has vanished, more has arrived


def cases(full: bool) -> list[Case]:
    return [{"mixer": name, "seed": seed} for name in MIXERS for seed in range(10 if full else 3)]


def measure(case: Case) -> Result:
    return {"reach": reach(MIXERS[case["mixer"]], case["seed"])}


def reach(mixer: Mixer, seed: int) -> list[float]:
    """Norm of the derivative of the last output with respect to each input, newest first, relative to the newest."""
    # without the residual connection, which would pass on the newest input in every network
    stack = Stack(width=WIDTH, depth=1, causal=True, block=Block(mixer=mixer, residual=False))
    net = Model(embed=Tokens(vocab=VOCAB), stack=stack, head=LM()).build(seed=seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    context = net.embed.layout(torch.randint(VOCAB, (TEXTS, LENGTH), generator=generator))
    x = torch.randn(TEXTS, LENGTH, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
    y = net.stack.blocks[0].mixer(x, context, None, ())
    direction = torch.randn(WIDTH, dtype=torch.float64, generator=generator)
    (slope,) = torch.autograd.grad((y[:, -1] @ direction).sum(), x)
    sizes = slope.norm(dim=-1).mean(0).flip(0)  # (T,)
    return list((sizes / sizes[0]).tolist())


def judge(found: Measurements) -> Finding:
    reaches = {name: found.where(mixer=name).values("reach") for name in MIXERS}
    far = {name: [one[FAR] for one in each] for name, each in reaches.items()}
    rows = [
        (name, *(f"{geometric_mean([floor(one[d]) for one in each]):.2g}" for d in SHOWN), ends(far[name]))
        for name, each in reaches.items()
    ]
    vanished = [name for name in ("rnn", "gru", "lstm") if max(far[name]) <= GONE]
    gated_reach_further = min(*far["gru"], *far["lstm"]) > max(far["rnn"])
    arrived = min(far["attention"]) >= KEPT
    if arrived and "rnn" in vanished:
        verdict = Verdict.HOLDS if len(vanished) == 3 and gated_reach_further else Verdict.IN_PART
    else:
        verdict = Verdict.NOT_HERE
    figures = ", ".join(f"{name} {geometric_mean([floor(v) for v in far[name]]):.1e}" for name in MIXERS)
    reason = (
        f"{FAR} tokens back at most {GONE:g} is left in {', '.join(vanished) or 'no recurrence'}; gates "
        f"{'reach further' if gated_reach_further else 'do not reach further'} than the plain RNN "
        f"({max(far['rnn']):.1e} at most); attention keeps {min(far['attention']):.2g} (bound {KEPT:g})"
    )
    lines = {
        name: [(d, geometric_mean([floor(one[d]) for one in each])) for d in range(len(each[0]))]
        for name, each in reaches.items()
    }
    return Finding(
        measured=f"gradient left {FAR} tokens back: {figures}",
        verdict=verdict,
        reason=reason,
        table=ResultTable(("mixer", *(f"d = {d}" for d in SHOWN), f"seeds at {FAR}"), rows),
        plots=[Plot("Gradient by distance", "tokens back", "share of the gradient left", lines, log_up=True)],
    )


def floor(value: float) -> float:
    """A value for a logarithmic axis: 0 becomes 1e-60."""
    return max(value, 1e-60)


def ends(values: list[float]) -> str:
    return f"{min(values):.1e} to {max(values):.1e}"


CLAIM = Claim(
    name="vanishing-gradients",
    claim="In an RNN gradients vanish with distance; gates slow this down, and attention does not have the problem",
    lecture="L0, L2",
    source="the lectures' slides on the limits of recurrence; Bengio, Simard and Frasconi 1994",
    quoted="path length O(T) in a recurrence, O(1) in attention",
    method="norm of d output(T) / d input(T - d), relative to d = 0, of one layer of width 64 at initialisation, in "
    "float64",
    cost="1 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

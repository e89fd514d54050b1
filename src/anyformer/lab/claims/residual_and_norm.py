"""Residuals and norms removed from a deep network: whether it trains, and the rank of its tokens (L1, L3; R78)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.fit import fit, lab_device
from anyformer.mixers import Attention
from anyformer.norms import LayerNorm, NoNorm
from anyformer.positions import Sinusoid

# Whether the network keeps its residuals and its norms; the norm before the head stays in all four.
KINDS = {
    "default": (True, True),
    "no residual": (False, True),
    "no norm": (True, False),
    "neither": (False, False),
}
VOCAB, LENGTH, WIDTH, BACK, BATCH, EVERY = 16, 16, 32, 2, 32, 10
SHALLOW, DEEP, SMALL_STEPS, FULL_STEPS = 2, 12, 120, 400
CHANCE = math.log(VOCAB)
LEARNT, STUCK = 0.75, 0.95  # of the loss of guessing
DIVERGED = 10.0  # recorded for a loss that is not finite any more
RANK_DEPTH, RANK_WIDTH, RANK_LENGTH, RANK_AT = 24, 64, 32, 12
COUNTS = 1e-2  # of the largest singular value: smaller ones do not count towards the rank
COLLAPSED, KEPT = 1.5, 0.5  # the rank after RANK_AT layers; the share of its rank that the default keeps


def cases(full: bool) -> list[Case]:
    seeds, steps = (5, FULL_STEPS) if full else (3, SMALL_STEPS)
    depths: dict[int, tuple[float, ...]] = {SHALLOW: (4e-3,), DEEP: (1e-3, 4e-3)}
    if full:
        depths = dict.fromkeys((SHALLOW, DEEP, 24), (3e-4, 1e-3, 4e-3))
    at_start = [{"what": "rank", "kind": kind, "seed": seed} for kind in KINDS for seed in range(seeds)]
    trained = [
        {"what": "train", "kind": kind, "depth": depth, "lr": lr, "seed": seed, "steps": steps}
        for depth, rates in depths.items()
        for kind in KINDS
        for lr in rates
        for seed in range(seeds)
    ]
    return [*at_start, *trained]


def measure(case: Case) -> Result:
    return ranks(case["kind"], case["seed"]) if case["what"] == "rank" else train(case)


def network(kind: str, depth: int, width: int) -> Model:
    residual, normed = KINDS[kind]
    block = Block(mixer=Attention(heads=4), residual=residual, norm=LayerNorm() if normed else NoNorm())
    stack = Stack(width=width, depth=depth, causal=True, block=block, final=LayerNorm())
    return Model(embed=Tokens(vocab=VOCAB, position=Sinusoid(), scale=True), stack=stack, head=LM(), init="xavier")


def ranks(kind: str, seed: int) -> Result:
    """After every layer at initialisation: the rank of the tokens, and how far they are from being equal."""
    net = network(kind, RANK_DEPTH, RANK_WIDTH).build(seed=seed, dtype=torch.float64)
    ids = torch.randint(VOCAB, (4, RANK_LENGTH), generator=torch.Generator().manual_seed(seed))
    context = net.embed.layout(ids)
    with torch.no_grad():
        x = net.embed(ids, context=context)
        streams = [x, *(y for y, _ in net.stack.walk(x, context))]
    return {"rank": [rank(x) for x in streams], "apart": [apart(x) for x in streams]}


def rank(x: Tensor) -> float:
    """Singular values of each (T,D) of x (B,T,D) that count, on average."""
    sizes = torch.linalg.svdvals(x)
    return (sizes > COUNTS * sizes[:, :1]).sum(1).double().mean().item()


def apart(x: Tensor) -> float:
    """|X - 1 mean(X)| / |X|: 0 when all tokens are the same (2103.03404 calls the numerator res(X))."""
    return ((x - x.mean(1, keepdim=True)).norm(dim=(1, 2)) / x.norm(dim=(1, 2))).mean().item()


def train(case: Case) -> Result:
    """Output the token two steps back: attention has to find it, and every layer has to pass it on."""
    device, steps = lab_device(case["steps"] == FULL_STEPS), case["steps"]
    net = network(case["kind"], case["depth"], WIDTH).build(seed=case["seed"], device=device)

    def loss_of(generator: torch.Generator) -> Tensor:
        tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator).to(device)
        logits = net(tokens).logits
        assert logits is not None
        return F.cross_entropy(logits[:, BACK:].flatten(0, 1), tokens[:, :-BACK].flatten())

    curve = fit(net, loss_of, steps=steps, seed=case["seed"], lr=case["lr"], warmup=steps // 10)
    means = [min(sum(curve[at : at + EVERY]) / EVERY, DIVERGED) for at in range(0, steps, EVERY)]
    return {"loss": means[-1], "curve": means}


def judge(found: Measurements) -> Finding:
    trained = found.where(what="train")
    deep = DEEP
    depths = sorted({case["depth"] for case, _ in trained.entries})
    last = {kind: best(trained.where(kind=kind, depth=deep)) for kind in KINDS}
    after = {kind: [each[RANK_AT] for each in found.where(what="rank", kind=kind).values("rank")] for kind in KINDS}
    at_start = found.where(what="rank", kind="default").values("rank")
    bare = averaged(found.where(what="rank", kind="no residual").values("apart"))
    shrinks = (bare[-1] / bare[4]) ** (1 / (len(bare) - 5))
    trains = max(last["default"]) <= LEARNT * CHANCE
    stuck = min(*last["no residual"], *last["neither"]) >= STUCK * CHANCE
    shallow = max(best(trained.where(kind="no residual", depth=SHALLOW))) <= LEARNT * CHANCE
    collapses = max(*after["no residual"], *after["neither"]) <= COLLAPSED
    keeps = min(now / each[0] for now, each in zip(after["default"], at_start, strict=True)) >= KEPT
    norm_helps = min(last["no norm"]) > max(last["default"])
    if trains and stuck and collapses and keeps:
        verdict = Verdict.HOLDS if norm_helps and shallow else Verdict.IN_PART
    else:
        verdict = Verdict.IN_PART if trains and (stuck or collapses) else Verdict.NOT_HERE
    return Finding(
        measured=f"loss of {deep} layers at the best rate (guessing {CHANCE:.2f}): "
        + ", ".join(f"{kind} {spread(values, '.2f')}" for kind, values in last.items())
        + f"; rank after {RANK_AT} layers: default {spread(after['default'], '.0f')}, no residual "
        f"{spread(after['no residual'], '.0f')}",
        verdict=verdict,
        reason=f"at {deep} layers the default {'trains' if trains else 'does not train'} (at most {LEARNT:g} of "
        f"guessing) and without residuals it {'does not' if stuck else 'learns'} (bound {STUCK:g} of guessing), while "
        f"{SHALLOW} layers without them {'do' if shallow else 'do not train either'}; the rank without residuals "
        f"{'falls' if collapses else 'does not fall'} to {max(after['no residual']):.1f} (bound {COLLAPSED:g}), their "
        f"distance from one token by a factor of {shrinks:.2f} a layer; "
        f"the default has {min(after['default']):.0f} (at the start {at_start[0][0]:.0f}); without norms the loss is "
        f"{'higher' if norm_helps else 'not higher in every seed'}",
        table=ResultTable(
            ("network", *(f"loss, {depth} layers" for depth in depths), *(f"rank, {n}" for n in (0, 4, 12, 24))),
            [row(found, kind, depths) for kind in KINDS],
        ),
        plots=[
            layers_plot(
                found, "rank", "Rank of the tokens at the start", f"singular values above {COUNTS:.0%} of the largest"
            ),
            layers_plot(found, "apart", "How far the tokens are from being one", "|X - mean| / |X|"),
            training_plot(trained, deep),
        ],
    )


def best(found: Measurements) -> list[float]:
    """Each seed's loss at its best learning rate, so that no network fails because of a rate that suits another."""
    seeds = sorted({case["seed"] for case, _ in found.entries})
    return [min(found.where(seed=seed).values("loss")) for seed in seeds]


def row(found: Measurements, kind: str, depths: list[int]) -> tuple[str, ...]:
    losses = [spread(best(found.where(what="train", kind=kind, depth=depth)), ".2f") for depth in depths]
    each = found.where(what="rank", kind=kind).values("rank")
    return (kind, *losses, *(spread([one[at] for one in each], ".0f") for at in (0, 4, 12, 24)))


def layers_plot(found: Measurements, name: str, title: str, up: str) -> Plot:
    lines = {}
    for kind in KINDS:
        means = averaged(found.where(what="rank", kind=kind).values(name))
        lines[kind] = list(enumerate(means))
    return Plot(title, "layers", up, lines, log_up=True)


def training_plot(trained: Measurements, depth: int) -> Plot:
    """Each network at the learning rate that is best for it on average."""
    lines = {}
    for kind in KINDS:
        each = trained.where(kind=kind, depth=depth)
        rates = sorted({case["lr"] for case, _ in each.entries})
        chosen = each.where(lr=min(rates, key=lambda lr: each.where(lr=lr).mean("loss")))
        lines[kind] = [((at + 1) * EVERY, value) for at, value in enumerate(averaged(chosen.values("curve")))]
    return Plot(f"Training {depth} layers (guessing: {CHANCE:.2f})", "step", "loss", lines)


def averaged(curves: list[list[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*curves, strict=True)]


CLAIM = Claim(
    name="residual-and-norm",
    claim="Deep networks do not train without residual connections, as all tokens become equal; norms help training",
    lecture="L1, L3",
    source="L3, residual connections and LayerNorm; 2103.03404 (Dong et al.) for the rank",
    quoted="residuals and norms each dramatically improve trainability; without them the rank falls doubly "
    "exponentially",
    method=f"{DEEP} layers of width {WIDTH} learn to output the token {BACK} steps before, with residuals or norms "
    f"removed, each at the best of several learning rates; and the rank of {RANK_LENGTH} tokens through {RANK_DEPTH} "
    "layers at initialisation, in float64",
    cost="4 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

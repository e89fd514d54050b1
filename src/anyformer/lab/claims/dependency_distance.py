"""How far back a convolution, a recurrent network and attention can look, at equal parameters (L4; R114)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.feeds import MLP
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.fit import fit, lab_device
from anyformer.mixers import Attention, Convolution, Recurrent
from anyformer.positions import Shaw

SYMBOLS, WIDTH = 8, 32
CHANCE = 1 / SYMBOLS
# Two layers of 12 width^2 parameters each. Kernel 3, dilated by 1 and by 2, sees 2 + 4 tokens back and no more.
BLOCKS = {
    "convolution": (
        Block(mixer=Convolution(3), feed=MLP(width=9 * WIDTH // 2)),
        Block(mixer=Convolution(3, dilation=2), feed=MLP(width=9 * WIDTH // 2)),
    ),
    "recurrence": (Block(mixer=Recurrent("gru"), feed=MLP(width=3 * WIDTH)),),
    "attention": (
        Block(mixer=Attention(heads=4), relative=Shaw(24), feed=MLP(width=4 * WIDTH - 12)),
    ),  # the tables of Shaw(24)
}
FIELD = sum(block.mixer.reach for block in BLOCKS["convolution"] if isinstance(block.mixer, Convolution))
DISTANCES, ALL_DISTANCES = (1, 4, FIELD, FIELD + 1, 16), (1, 2, 4, FIELD, FIELD + 1, 8, 12, 16)
KNOWN, GUESSED, EQUAL = 0.95, 0.2, 0.05  # accuracy at least, at most; parameters apart from each other


def cases(full: bool) -> list[Case]:
    distances, seeds, steps = (ALL_DISTANCES, 5, 1000) if full else (DISTANCES, 3, 150)
    return [
        {"mixer": name, "distance": distance, "seed": seed, "steps": steps}
        for name in BLOCKS for distance in distances for seed in range(seeds)
    ]  # fmt: skip


def measure(case: Case) -> Result:
    distance, device = case["distance"], lab_device(case["steps"] > 150)
    stack = Stack(width=WIDTH, depth=2, causal=True, block=BLOCKS[case["mixer"]])
    net = Model(embed=Tokens(vocab=SYMBOLS), stack=stack, head=LM(tied=False)).build(seed=case["seed"], device=device)

    def answers(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Logits, and their targets: the symbols `distance` tokens back."""
        tokens = torch.randint(SYMBOLS, (rows, 32 + distance), generator=generator).to(device)
        return net(tokens).logits[:, distance:].flatten(0, 1), tokens[:, :-distance].flatten()

    fit(net, lambda generator: F.cross_entropy(*answers(16, generator)), steps=case["steps"], seed=case["seed"],
        lr=1e-2, warmup=case["steps"] // 10)  # fmt: skip
    with torch.no_grad():
        logits, wanted = answers(64, torch.Generator().manual_seed(99))
    return {
        "accuracy": (logits.argmax(-1) == wanted).float().mean().item(),
        "parameters": sum(p.numel() for p in net.parameters()),
    }


def judge(found: Measurements) -> Finding:
    distances = sorted({case["distance"] for case, _ in found.entries})
    each = {name: {d: found.where(mixer=name, distance=d) for d in distances} for name in BLOCKS}
    convolution, attention, recurrence = each["convolution"], each["attention"], each["recurrence"]
    inside = min(value for d in distances if d <= FIELD for value in convolution[d].values("accuracy"))
    beyond = max(value for d in distances if d > FIELD for value in convolution[d].values("accuracy"))
    reached = min(value for d in distances for value in attention[d].values("accuracy"))
    sizes = [found.where(mixer=name).mean("parameters") for name in BLOCKS]
    equal = max(sizes) / min(sizes) - 1 <= EQUAL
    fails = inside >= KNOWN and beyond <= GUESSED and equal
    verdict = Verdict.NOT_HERE
    if fails:
        verdict = Verdict.HOLDS if reached >= KNOWN else Verdict.IN_PART
    last = distances[-1]
    return Finding(
        measured=f"right {last} tokens back: "
        + ", ".join(f"{name} {each[name][last].spread('accuracy', '.1%')}" for name in BLOCKS)
        + f"; chance {CHANCE:.1%}",
        verdict=verdict,
        reason=f"the convolutions, which see {FIELD} tokens back, have {inside:.1%} at least inside (bound "
        f"{KNOWN:.0%}) and {beyond:.1%} at most beyond (bound {GUESSED:.0%}); attention has {reached:.1%} at least at "
        f"every distance; the recurrence falls from {recurrence[distances[0]].mean('accuracy'):.1%} to "
        f"{recurrence[last].mean('accuracy'):.1%}; parameters {', '.join(f'{size:,.0f}' for size in sizes)} "
        f"(at most {EQUAL:.0%} apart)",
        table=ResultTable(
            ("mixer", "parameters", *(f"{d} back" for d in distances)),
            [
                (name, f"{size:,.0f}", *(each[name][d].spread("accuracy", ".1%") for d in distances))
                for name, size in zip(BLOCKS, sizes, strict=True)
            ],
        ),
        plots=[
            Plot(
                "Symbols given back", "tokens back", "accuracy",
                {name: [(d, each[name][d].mean("accuracy")) for d in distances] for name in BLOCKS},
            )
        ],
    )  # fmt: skip


CLAIM = Claim(
    name="dependency-distance",
    claim="CNNs can process text too, but attention reaches distant tokens, while a CNN ends at its receptive field",
    lecture="L4",
    source="EPFL CS-433, Transformers: big picture",
    quoted="CNNs can also be used for text processing, but transformers excel at capturing long-range dependencies",
    method="two causal layers of 12 width^2 parameters each, width 32: convolutions (kernel 3, dilation 1 and 2), GRU "
    "or attention; the task is to output the symbol, one of 8, from d tokens ago; a new network for every d",
    cost="3 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

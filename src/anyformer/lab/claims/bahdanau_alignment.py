"""Bahdanau's decoder attends along the diagonal where a translation is monotone, and not where it has no order (L3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import LM
from anyformer.inspection.maps import attention_maps
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.fit import fit, lab_device
from anyformer.mixers import AttendingRecurrent, Recurrent
from anyformer.mixers.alignment import Score
from anyformer.positions import Sinusoid

START, SYMBOLS, WIDTH, ROWS = 0, 30, 64, 64  # symbols are 1 to 30
SHORTEST, LONGEST = 3, 10
ON_DIAGONAL, NO_ORDER, LEARNT = 0.95, 0.5, 0.9  # R44 asks for the first; chance at these lengths is 0.1 to 0.33
# What is trained: the score, whether the encoder has positions, and the task.
NETS: dict[str, tuple[Score, bool, str]] = {
    "additive": ("additive", True, "monotone"),
    "general": ("general", True, "monotone"),
    "dot": ("dot", True, "monotone"),
    "additive, no positions": ("additive", False, "monotone"),
    "additive, no order": ("additive", True, "sorted"),
}
Draw = Callable[[int, int, torch.Generator], tuple[Tensor, ...]]
MAIN, UNPLACED, CONTROL = "additive", "additive, no positions", "additive, no order"


def cases(full: bool) -> list[Case]:
    several = 10 if full else 3
    seeds = {name: several if full or name in (MAIN, UNPLACED, CONTROL) else 1 for name in NETS}
    return [{"net": name, "seed": seed, "steps": 1000 if full else 300} for name in NETS for seed in range(seeds[name])]


def network(decoder: AttendingRecurrent, *, positions: bool = True) -> Seq2Seq:
    """A bidirectional GRU encoder and a GRU decoder, one layer each; the encoder may have positions."""
    reading = Block(mixer=Recurrent("gru", hidden=WIDTH // 2), feed=None)
    writing = Stack(width=WIDTH, depth=1, block=Block(mixer=decoder, feed=None), causal=True)
    embed = Tokens(vocab=SYMBOLS + 1)
    placed = embed.replace(position=Sinusoid() if positions else None)
    return Seq2Seq(
        encoder=Model(embed=placed, stack=Stack(width=WIDTH, depth=1, block=reading)),
        decoder=Model(embed=embed, stack=writing),
        head=LM(tied=False),
    )


def sentences(task: str, rows: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Source (B,S), target (B,T), and which source symbol each target symbol translates; symbols are distinct.

    "monotone" translates in the order of the source, "sorted" in the order of the symbols, whatever theirs was.
    """
    source = torch.rand(rows, SYMBOLS, generator=generator).argsort(1)[:, :length] + 1
    order = source.argsort(1) if task == "sorted" else torch.arange(length).expand(rows, length)
    return source, translation(source.gather(1, order)), order


def translation(symbols: Tensor) -> Tensor:
    """Each symbol has one translation: the symbol seven further on."""
    return (symbols + 6) % SYMBOLS + 1


def teacher_forced(target: Tensor) -> Tensor:
    """The decoder's input: the target shifted by one."""
    return F.pad(target[:, :-1], (1, 0), value=START)


def train(
    net: nn.Module, draw: Draw, *, steps: int, longest: int = LONGEST, seed: int, device: torch.device
) -> None:  # fmt: skip
    """Each batch has sentences of one length, 3 to `longest` symbols, which `draw(rows, length, generator)` makes."""

    def loss_of(generator: torch.Generator) -> Tensor:
        length = int(torch.randint(SHORTEST, longest + 1, (), generator=generator))
        source, target, *_ = (part.to(device) for part in draw(ROWS, length, generator))
        return F.cross_entropy(net(source, teacher_forced(target)).logits.flatten(0, 1), target.flatten())

    fit(net, loss_of, steps=steps, seed=seed, lr=5e-3, warmup=steps // 10)


def measure(case: Case) -> Result:
    score, positions, task = NETS[case["net"]]
    device = lab_device(case["steps"] > 300)
    net = network(AttendingRecurrent("gru", score=score), positions=positions).build(seed=case["seed"], device=device)
    train(net, partial(sentences, task), steps=case["steps"], seed=case["seed"], device=device)
    return alignment(net, task, device)


@torch.no_grad()
def alignment(net: nn.Module, task: str, device: torch.device) -> Result:
    """Where the largest weight of each step lies, as shares of all steps at all lengths."""
    generator = torch.Generator().manual_seed(99)
    shares: list[tuple[float, ...]] = []
    offsets = torch.zeros(2 * LONGEST - 1, device=device)
    for length in range(SHORTEST, LONGEST + 1):
        source, target, order = (part.to(device) for part in sentences(task, 200, length, generator))
        (weights,) = attention_maps(net, source, teacher_forced(target))["decoder.stack.blocks.0.mixer"]  # (B,1,T,S)
        looked = weights[:, 0].argmax(-1)
        right = net(source, teacher_forced(target)).logits.argmax(-1) == target
        from_diagonal = looked - torch.arange(length, device=device)
        each = (from_diagonal == 0, from_diagonal.abs() <= 1, looked == order, right)
        shares.append(tuple(found.float().mean().item() for found in each))
        offsets += torch.bincount((from_diagonal + LONGEST - 1).flatten(), minlength=2 * LONGEST - 1)
    names = ("diagonal", "within_one", "on_symbol", "right")
    figures = dict(zip(names, map(mean, zip(*shares, strict=True)), strict=True))
    return {**figures, "offsets": (offsets / offsets.sum()).tolist()}


def judge(found: Measurements) -> Finding:
    each = {name: found.where(net=name) for name in NETS}
    diagonal = {name: each[name].values("diagonal") for name in NETS}
    learnt = min(each[MAIN].values("right")) >= LEARNT
    along = min(diagonal[MAIN]) >= ON_DIAGONAL
    control = max(diagonal[CONTROL]) <= NO_ORDER
    unaided = min(diagonal[UNPLACED]) >= ON_DIAGONAL
    verdict = Verdict.NOT_HERE
    if along and learnt and control:
        verdict = Verdict.HOLDS if unaided else Verdict.IN_PART
    return Finding(
        measured=f"largest weights on the diagonal: {each[MAIN].spread('diagonal', '.1%')}; without positions in the "
        f"encoder {each[UNPLACED].spread('diagonal', '.1%')}; where there is no order "
        f"{each[CONTROL].spread('diagonal', '.1%')}",
        verdict=verdict,
        reason=f"additive attention with positions has at least {min(diagonal[MAIN]):.1%} on the diagonal (bound "
        f"{ON_DIAGONAL:.0%}), the control at most {max(diagonal[CONTROL]):.1%} (bound {NO_ORDER:.0%}), though "
        f"{each[CONTROL].mean('on_symbol'):.0%} of its weights find their symbol; an encoder that is told no positions "
        f"gets {each[UNPLACED].mean('right'):.0%} of symbols right with at least {min(diagonal[UNPLACED]):.1%} on the "
        f"diagonal ({each[UNPLACED].mean('within_one'):.0%} on it or one beside it: a state of a recurrence also knows "
        "its neighbours)",
        table=ResultTable(
            ("score", "on the diagonal", "on it or one beside", "on its symbol", "symbols right"),
            [
                (name, *(one.spread(figure, ".1%") for figure in ("diagonal", "within_one", "on_symbol", "right")))
                for name, one in each.items()
            ],
        ),
        plots=[
            Plot(
                "Where a step looks", "symbols to the right of the diagonal", "share of the steps",
                {
                    name.removeprefix("additive, "): offset_line(each[name].values("offsets"))
                    for name in (MAIN, UNPLACED, CONTROL)
                },
            )
        ],
    )  # fmt: skip


def offset_line(each: list[list[float]]) -> list[tuple[float, float]]:
    return [(at - LONGEST + 1, mean(values)) for at, values in enumerate(zip(*each, strict=True))]


CLAIM = Claim(
    name="bahdanau-alignment",
    claim="The decoder decides which parts of the source to attend to: where the translation is monotone, so is the "
    "alignment",
    lecture="L3",
    source="1409.0473, section 3.1 and figure 3",
    quoted="figure 3: alignments from English to French lie along the diagonal, except for adjectives and nouns",
    method=f"a bidirectional GRU encoder and a GRU decoder with attention, one layer of width {WIDTH} each; each of "
    f"up to {LONGEST} distinct symbols has one translation; the target is in the order of the source or, as a "
    "control, sorted; measured is the share of steps whose largest weight lies on the diagonal",
    cost="2 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

"""Do large attention weights show what an output depends on? Each edge and each head is removed in turn (L4; R68)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.block import Block
from anyformer.core.model import Model, ModelModule
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.heads import Pooled
from anyformer.inspection.ablate import ablate
from anyformer.inspection.capture import look
from anyformer.inspection.importance import rank_correlation
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.fit import fit, lab_device
from anyformer.mixers import Attention
from anyformer.positions import Learned

TASKS = ("recall", "votes")
KEYS, VALUES, WORDS = 8, 4, 16  # a recall token is a key with its value; after these come the bare keys, as queries
WIDTH, DEPTH, HEADS = 64, 2, 4
STEPS, BATCH, ROWS, LEARNED = 300, 64, 48, 0.9
AGREES, CORRELATED, BY_LUCK = 0.5, 0.5, 0.1
DECILES = 10


def cases(full: bool) -> list[Case]:
    return [{"task": task, "seed": seed, "full": full} for task in TASKS for seed in range(10 if full else 3)]


def draw(task: str, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts (B,T) and their answers (B,): the value of the last key, or whether the ayes are in the majority."""
    if task == "recall":
        values = torch.randint(VALUES, (rows, KEYS), generator=generator)
        order = torch.rand(rows, KEYS, generator=generator).argsort(1)
        asked = torch.randint(KEYS, (rows, 1), generator=generator)
        texts = order * VALUES + values.gather(1, order)
        return torch.cat([texts, KEYS * VALUES + asked], 1), values.gather(1, asked)[:, 0]
    words = torch.randint(3 * WORDS, (rows, WORDS), generator=generator)  # a third each: ayes, noes, no vote
    ayes, noes = (words % 3 == 0).sum(1), (words % 3 == 1).sum(1)
    return torch.cat([words, torch.full((rows, 1), 3 * WORDS)], 1), (ayes > noes).long()


def trained(task: str, seed: int, device: torch.device) -> ModelModule:
    """A small causal network that has learned the task; the answer is read at the last token."""
    stack = Stack(width=WIDTH, depth=DEPTH, causal=True, block=Block(mixer=Attention(heads=HEADS)))
    embed = Tokens(vocab=3 * WORDS + 1, position=Learned(WORDS + 1))
    net = Model(embed=embed, stack=stack, head=Pooled(classes=VALUES, pool="last")).build(seed=seed, device=device)

    def loss_of(generator: torch.Generator) -> Tensor:
        texts, answers = draw(task, BATCH, generator)
        return F.cross_entropy(net(texts.to(device)).logits, answers.to(device))

    fit(net, loss_of, steps=STEPS, seed=seed, lr=3e-3, warmup=20)
    return net


def measure(case: Case) -> Result:
    device, generator = lab_device(case["full"]), torch.Generator().manual_seed(case["seed"])
    net = trained(case["task"], case["seed"], device)
    texts, answers = (each.to(device) for each in draw(case["task"], ROWS, generator))
    weights = answer_weights(net, texts)  # (B,L,H,T)
    with torch.no_grad():
        whole = net(texts).logits.softmax(-1)
        accuracy = (whole.argmax(-1) == answers).double().mean().item()
    by_edge = edge_effects(net, texts, whole)
    by_head = head_effects(net, texts, whole)
    luck = weights.flatten(1)[:, torch.randperm(weights[0].numel(), generator=generator)].view_as(weights)
    return {
        "accuracy": accuracy, "top_edge": top_agrees(weights, by_edge), "edges": weights[0].numel(),
        "edge_correlation": correlation(weights, by_edge), "luck": correlation(luck, by_edge),
        "top_head": top_agrees(weights.amax(-1), by_head), "head_correlation": correlation(weights.amax(-1), by_head),
        "effect_by_weight": effect_by_weight(weights, by_edge),
    }  # fmt: skip


def answer_weights(net: ModelModule, texts: Tensor) -> Tensor:
    """The weights (B,L,H,T) from the answering token to every token."""
    capture = look(net, texts)
    last = slice(texts.shape[1] - 1, texts.shape[1])
    rows = [torch.stack([capture.weights(site.index, rows=last, row=row)[:, 0] for site in capture.sites])
            for row in range(len(texts))]  # fmt: skip
    return torch.stack(rows)


def edge_effects(net: ModelModule, texts: Tensor, whole: Tensor) -> Tensor:
    """The change of the output (B,classes) when each edge to the answering token is removed (B,L,H,T)."""
    length = texts.shape[1]
    found = torch.zeros(len(texts), DEPTH, HEADS, length)
    for layer in range(DEPTH):
        for head in range(HEADS):
            for key in range(length):
                found[:, layer, head, key] = moved(
                    net, texts, whole, ablate(net, edges=[(layer, head, length - 1, key)])
                )
    return found


def head_effects(net: ModelModule, texts: Tensor, whole: Tensor) -> Tensor:
    """The change of the output when each head is ablated (B,L,H)."""
    pairs = [
        [moved(net, texts, whole, ablate(net, heads=[(layer, head)])) for head in range(HEADS)]
        for layer in range(DEPTH)
    ]
    return torch.stack([torch.stack(row, 1) for row in pairs], 1)


@torch.no_grad()
def moved(net: ModelModule, texts: Tensor, whole: Tensor, without: AbstractContextManager[Any]) -> Tensor:
    """Total variation between the outputs of the whole network and `without` a part (B,)."""
    with without:
        return (net(texts).logits.softmax(-1) - whole).abs().sum(-1).cpu() / 2


def top_agrees(weights: Tensor, effects: Tensor) -> float:
    """The share of texts in which the largest weight also has the largest effect."""
    return (weights.flatten(1).argmax(1) == effects.flatten(1).argmax(1)).double().mean().item()


def correlation(weights: Tensor, effects: Tensor) -> float:
    """Spearman's rank correlation, averaged over the texts."""
    both = zip(weights.flatten(1).tolist(), effects.flatten(1).tolist(), strict=True)
    return mean(rank_correlation(one, other) or 0.0 for one, other in both)


def effect_by_weight(weights: Tensor, effects: Tensor) -> list[float]:
    """The mean effect of the edges in each decile of the weights, smallest first."""
    order = weights.flatten().argsort()
    return [part.mean().item() for part in effects.flatten()[order].tensor_split(DECILES)]


def judge(found: Measurements) -> Finding:
    by_task = {task: found.where(task=task) for task in TASKS}
    learned = min(found.values("accuracy"))
    luck = max(abs(value) for value in found.values("luck"))
    fails = [
        task for task, each in by_task.items()
        if each.mean("top_edge") < AGREES or each.mean("edge_correlation") < CORRELATED
    ]  # fmt: skip
    fair = learned >= LEARNED and luck <= BY_LUCK
    verdict = Verdict.NOT_HERE if not fair or not fails else Verdict.IN_PART
    if fair and len(fails) == len(TASKS):
        verdict = Verdict.HOLDS
    measured = "; ".join(
        f"{task}: the largest weight is the largest effect in {each.spread('top_edge', '.0%')} of texts, rank "
        f"correlation {each.spread('edge_correlation', '.2f')}"
        for task, each in by_task.items()
    )
    return Finding(
        measured=measured,
        verdict=verdict,
        reason=f"weights mislead in {', '.join(fails) or 'no task'} (below {AGREES:.0%} of the texts or a correlation "
        f"of {CORRELATED:g}); networks are right in at least {learned:.0%} (bound {LEARNED:.0%}), shuffled weights "
        f"correlate by {luck:.2f} at most (bound {BY_LUCK:g})",
        table=ResultTable(
            ("task", "accuracy", "largest edge agrees", "edges", "largest head agrees", "heads", "shuffled"),
            [row(task, each) for task, each in by_task.items()],
        ),
        plots=[
            Plot(
                "What the edges of the answer are worth", "tenth of the weights, the smallest first", "answer moved",
                {task: curve(each) for task, each in by_task.items()},
            )
        ],
    )  # fmt: skip


def row(task: str, each: Measurements) -> tuple[str, ...]:
    shares = [each.spread(name, ".0%") for name in ("accuracy", "top_edge")]
    edges, heads, luck = (each.spread(name, ".2f") for name in ("edge_correlation", "head_correlation", "luck"))
    return (task, *shares, edges, each.spread("top_head", ".0%"), heads, luck)


def curve(each: Measurements) -> list[tuple[float, float]]:
    return [(at + 1, mean(values)) for at, values in enumerate(zip(*each.values("effect_by_weight"), strict=True))]


CLAIM = Claim(
    name="attention-is-no-explanation",
    claim="A large attention weight does not mean that the output depends on that token",
    lecture="L4",
    source="1902.10186; L4 shows maps that focus on what is relevant in many cases, not in all",
    quoted="weak to moderate correlation between attention weights and the effect of leaving a token out",
    method="two tasks, 2 layers of 4 heads: in one a single token decides, in the other all tokens vote; each "
    "attention edge to the answering token and each head is left out in turn, and the change of the output is ranked "
    "against the weight",
    cost="34 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

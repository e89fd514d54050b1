"""Token embeddings frozen at random, learned, or tied to the head: a language model and a classifier (L0; R115)."""

from __future__ import annotations

from statistics import mean

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
from anyformer.positions import Sinusoid

KINDS, TASKS = ("frozen", "learned", "tied"), ("language model", "classifier")
CLASSES, EACH, LENGTH, WIDTH, BATCH, EVERY = 16, 16, 16, 32, 32, 25
VOCAB = CLASSES * EACH  # the classifier's answers, no and yes, are the two words after them
LAST, SURE = 0.6, 0.9  # share of words whose class follows from the last word; from that or the one before it
SMALL_STEPS, FULL_STEPS = 300, 2000
GAIN, CLOSE = 0.05, 0.05  # shares of the loss: learned below frozen by at least, tied above learned by at most


def cases(full: bool) -> list[Case]:
    seeds, steps = (5, FULL_STEPS) if full else (3, SMALL_STEPS)
    return [
        {"task": task, "embedding": kind, "seed": seed, "steps": steps}
        for task in TASKS
        for kind in KINDS
        for seed in range(seeds)
    ]


def measure(case: Case) -> Result:
    steps, is_lm = case["steps"], case["task"] == "language model"
    device = lab_device(steps == FULL_STEPS)
    net = network(case["embedding"], causal=is_lm).build(seed=case["seed"], device=device)
    table = net.embed.table.weight
    before = table.detach().clone()

    def loss_of(generator: torch.Generator, rows: int = BATCH) -> Tensor:
        ids, targets = (sentences if is_lm else reviews)(rows, generator)
        logits = net(ids.to(device)).logits
        assert logits is not None
        return F.cross_entropy(logits[:, -targets.shape[1] :].flatten(0, 1), targets.to(device).flatten())

    curve = fit(net, loss_of, steps=steps, seed=case["seed"], warmup=steps // 10)
    with torch.no_grad():
        validation = loss_of(torch.Generator().manual_seed(99), rows=512).item()
    return {
        "loss": validation,
        "curve": [sum(curve[at : at + EVERY]) / EVERY for at in range(0, steps, EVERY)],
        "moved": (table - before).abs().max().item(),
        "trained": sum(p.numel() for p in net.parameters() if p.requires_grad),
    }


def network(kind: str, *, causal: bool) -> Model:
    """The same for both tasks: the classifier's answer is a word too, so it has an output table to tie."""
    stack = Stack(width=WIDTH, depth=2, causal=causal, block=Block(mixer=Attention(heads=4)))
    embed = Tokens(vocab=VOCAB + 2, position=Sinusoid(), scale=True, frozen=kind == "frozen")
    return Model(embed=embed, stack=stack, head=LM(tied=kind == "tied"), init="xavier")


def word_classes() -> Tensor:
    """The class of each word; it does not follow from the word's id."""
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1)) // EACH


def sentences(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids and the next ids (rows, LENGTH): a word's class follows from that of one of the two words before it."""
    grammar = torch.randint(CLASSES, (2, CLASSES), generator=torch.Generator().manual_seed(2))
    members = word_classes().argsort().view(CLASSES, EACH)
    classes = torch.randint(CLASSES, (rows, LENGTH + 1), generator=generator)
    chance = torch.rand(rows, LENGTH + 1, generator=generator)
    for at in range(2, LENGTH + 1):
        ruled = torch.where(chance[:, at] < LAST, grammar[0, classes[:, at - 1]], grammar[1, classes[:, at - 2]])
        classes[:, at] = torch.where(chance[:, at] < SURE, ruled, classes[:, at])
    words = members[classes, torch.randint(EACH, classes.shape, generator=generator)]
    return words[:, :-1], words[:, 1:]


def reviews(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ids (rows, LENGTH) and one word (rows, 1): yes if words of the first classes outnumber those of the last."""
    ids = torch.randint(VOCAB, (rows, LENGTH), generator=generator)
    likes = word_classes()[ids] < CLASSES // 2
    return ids, VOCAB + (2 * likes.sum(1, keepdim=True) > LENGTH).long()


def judge(found: Measurements) -> Finding:
    losses = {task: {kind: found.where(task=task, embedding=kind).values("loss") for kind in KINDS} for task in TASKS}
    gain = {task: 1 - mean(each["learned"]) / mean(each["frozen"]) for task, each in losses.items()}
    tied = {task: mean(each["tied"]) / mean(each["learned"]) - 1 for task, each in losses.items()}
    learning_helps = [
        max(losses[task]["learned"]) < min(losses[task]["frozen"]) and gain[task] >= GAIN for task in TASKS
    ]
    tying_keeps = all(value <= CLOSE for value in tied.values())
    still = max(found.where(embedding="frozen").values("moved")) == 0.0
    if still and all(learning_helps):
        verdict = Verdict.HOLDS if tying_keeps else Verdict.IN_PART
    else:
        verdict = Verdict.IN_PART if still and any(learning_helps) else Verdict.NOT_HERE
    return Finding(
        measured="; ".join(
            f"{task} " + ", ".join(f"{kind} {spread(values, '.3g')}" for kind, values in losses[task].items())
            for task in TASKS
        ),
        verdict=verdict,
        reason="learned rows lower the validation loss of frozen ones by "
        + " and ".join(f"{gain[task]:.0%} ({task})" for task in TASKS)
        + f" (bound {GAIN:.0%}, and lower in every seed); a tied table stands "
        + " and ".join(f"{tied[task]:+.0%}" for task in TASKS)
        + f" from learned (bound {CLOSE:+.0%}); frozen rows {'are bit for bit as they were' if still else 'moved'}",
        table=ResultTable(
            ("embedding", *(f"loss, {task}" for task in TASKS), "trained parameters"),
            [row(found, losses, kind) for kind in KINDS],
        ),
        plots=[training_plot(found, task) for task in TASKS],
    )


def row(found: Measurements, losses: dict[str, dict[str, list[float]]], kind: str) -> tuple[str, ...]:
    trained = found.where(embedding=kind).values("trained")[0]
    return (kind, *(spread(losses[task][kind], ".3g") for task in TASKS), f"{trained:,}")


def training_plot(found: Measurements, task: str) -> Plot:
    lines = {}
    for kind in KINDS:
        curves = found.where(task=task, embedding=kind).values("curve")
        lines[kind] = [((at + 1) * EVERY, mean(values)) for at, values in enumerate(zip(*curves, strict=True))]
    return Plot(f"Training a {task}", "step", "loss", lines)


CLAIM = Claim(
    name="frozen-embeddings",
    claim="Input embeddings are critical: learned ones beat frozen random ones, and they can be tied to the output "
    "layer",
    lecture="L0",
    source="L0, conclusions; for tying 1608.05859 (Press and Wolf)",
    quoted='"input embeddings are critical to the overall performance"; no figure',
    method=f"2 layers of width {WIDTH} on {VOCAB} words of {CLASSES} hidden classes: a language model in which the "
    "next word's class follows from earlier ones, and a classifier that decides which of two groups of classes is "
    "more frequent; validation loss on new texts, with the same data, steps and seeds for all",
    cost="2 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

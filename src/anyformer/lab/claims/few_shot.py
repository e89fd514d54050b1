"""Does accuracy rise with the number of examples in the prompt, and does that depend on model size? (L4; R40)"""

from __future__ import annotations

from itertools import pairwise
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.model import ModelModule
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.fit import fit, lab_device
from anyformer.presets.decoders import gpt2

Size = tuple[int, int]  # width and layers
KEYS, VALUES, PAIRS = 3, 10, 12
SHOTS = (0, 1, 2, 4, 8)
SIZES = ((8, 1), (16, 2), (32, 2), (64, 2))  # width and layers
SIZES_FULL = ((8, 1), (16, 1), (16, 2), (32, 2), (64, 2), (128, 4), (256, 6))
STEPS, STEPS_FULL, BATCH, PROMPTS = 500, 1500, 32, 1000
BY_LUCK, RISE, JUMP = 0.05, 0.15, 0.5


def cases(full: bool) -> list[Case]:
    """Every size with the same seeds."""
    sizes = SIZES_FULL if full else SIZES
    return [{"width": width, "layers": layers, "seed": seed, "full": full}
            for width, layers in sizes for seed in range(5 if full else 3)]  # fmt: skip


def draw(rows: int, pairs: int, generator: torch.Generator) -> Tensor:
    """Lines of key, value, key, value, ... (B, 2 pairs): each line assigns its own values to the keys."""
    values = torch.randint(VALUES, (rows, KEYS), generator=generator)
    keys = torch.randint(KEYS, (rows, pairs), generator=generator)
    return torch.stack([VALUES + keys, values.gather(1, keys)], 2).flatten(1)


def possible(shots: int) -> float:
    """The best possible accuracy: a key that no example shows can only be guessed."""
    unseen = (1 - 1 / KEYS) ** shots
    return 1 - unseen * (1 - 1 / VALUES)


def measure(case: Case) -> Result:
    device, seed = lab_device(case["full"]), case["seed"]
    spec = gpt2(case["width"], case["layers"], 2, vocab=VALUES + KEYS, length=2 * PAIRS, dropout=0.0)
    # The usual init, a standard deviation of 0.02, is too small for a width of 8.
    net = spec.replace(init="xavier", head=LM(tied=False)).build(seed=seed, device=device)

    def loss_of(generator: torch.Generator) -> Tensor:
        lines = draw(BATCH, PAIRS, generator).to(device)
        logits = net(lines[:, :-1]).logits[:, ::2]  # only the values: which key comes next is random
        return F.cross_entropy(logits.flatten(0, 1), lines[:, 1::2].flatten())

    steps = STEPS_FULL if case["full"] else STEPS
    fit(net, loss_of, steps=steps, seed=seed, lr=3e-3 if case["width"] <= 64 else 1e-3, warmup=50)
    generator = torch.Generator().manual_seed(10**6 + seed)
    return {
        "accuracy": [accuracy(net, shots, generator, device) for shots in SHOTS],
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
    }


@torch.no_grad()
def accuracy(net: ModelModule, shots: int, generator: torch.Generator, device: torch.device) -> float:
    """How often the value of the last key is predicted, after `shots` pairs of the same line."""
    lines = draw(PROMPTS, shots + 1, generator).to(device)
    named = net(lines[:, :-1]).logits[:, -1, :VALUES].argmax(-1)
    return (named == lines[:, -1]).double().mean().item()


def judge(found: Measurements) -> Finding:
    sizes = list(dict.fromkeys((case["width"], case["layers"]) for case, _ in found.entries))
    tables = {size: by_shots(of_size(found, size)) for size in sizes}
    smallest, largest = tables[sizes[0]], tables[sizes[-1]]
    rises = all(after > before for before, after in pairwise(largest))
    learned = largest[-1] - largest[0] >= RISE
    by_luck = all(abs(table[0] - 1 / VALUES) <= BY_LUCK for table in tables.values())
    gain = largest[-1] - smallest[-1]
    if by_luck and learned and rises:
        verdict = Verdict.HOLDS if gain >= RISE else Verdict.IN_PART
    else:
        verdict = Verdict.NOT_HERE
    return Finding(
        measured=f"{name_of(sizes[-1])}: "
        + ", ".join(f"{right:.0%} with {shots}" for shots, right in zip(SHOTS, largest, strict=True))
        + f" shots; {name_of(sizes[0])}: {smallest[0]:.0%} to {smallest[-1]:.0%}",
        verdict=verdict,
        reason=f"the largest model gains {largest[-1] - largest[0]:.2f} from 0 to {SHOTS[-1]} shots (bound {RISE:g}), "
        f"{'more' if rises else 'not more'} with each number of shots; without examples "
        f"{'all are within' if by_luck else 'not all are within'} {BY_LUCK:g} of guessing; it is {gain:.2f} above the "
        f"smallest at {SHOTS[-1]} shots (bound {RISE:g}): {growth(sizes, tables)}",
        table=ResultTable(
            ("width x layers", "parameters", *(f"{shots} shots" for shots in SHOTS)),
            [
                *(row(size, of_size(found, size)) for size in sizes),
                ("possible", "", *(f"{possible(shots):.0%}" for shots in SHOTS)),
            ],
        ),
        plots=[
            Plot(
                "Accuracy by shots", "examples in the prompt", "share right",
                {name_of(size): list(zip(SHOTS, table, strict=True)) for size, table in tables.items()},
            ),
            Plot(
                "Accuracy by size", "parameters", "share right",
                {f"{shots} shots": [(parameters(found, size), tables[size][at]) for size in sizes]
                 for at, shots in enumerate(SHOTS)},
                log_across=True,
            ),
        ],
    )  # fmt: skip


def growth(sizes: list[Size], tables: dict[Size, list[float]]) -> str:
    """Whether accuracy at the most shots rises in one step of size or gradually."""
    gain = tables[sizes[-1]][-1] - tables[sizes[0]][-1]
    if gain < RISE:
        return "size decides little here"
    share, larger = max(((tables[after][-1] - tables[before][-1]) / gain, after) for before, after in pairwise(sizes))
    kind = "a jump" if share > JUMP else "smooth"
    return f"{kind}, {share:.0%} of that comes with the step to {name_of(larger)}"


def of_size(found: Measurements, size: Size) -> Measurements:
    return found.where(width=size[0], layers=size[1])


def name_of(size: Size) -> str:
    return f"{size[0]} x {size[1]}"


def by_shots(each: Measurements) -> list[float]:
    return [mean(values) for values in zip(*each.values("accuracy"), strict=True)]


def parameters(found: Measurements, size: Size) -> int:
    return int(of_size(found, size).values("parameters")[0])


def row(size: Size, each: Measurements) -> tuple[str, ...]:
    columns = zip(*each.values("accuracy"), strict=True)
    shown = [f"{mean(values):.0%} ({min(values):.0%} to {max(values):.0%})" for values in columns]
    return (name_of(size), f"{each.values('parameters')[0]:,}", *shown)


CLAIM = Claim(
    name="few-shot",
    claim="Larger models learn from the examples in a prompt: accuracy rises with the number of shots",
    lecture="L4",
    source="2005.14165; L4 lists few-shot learning among the abilities that emerge at scale",
    quoted="few-shot learning emerges at scale",
    method="decoders of growing size are trained on lines of keys and values, in which a key always has the same "
    "value within a line but another one in the next; then 1,000 prompts ask for one key, after 0 to 8 pairs of the "
    "same line",
    cost="35 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

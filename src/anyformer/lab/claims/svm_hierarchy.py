"""Two attention layers under gradient descent: does each become the SVM of its own inputs? (L0; R69)"""

from __future__ import annotations

import math
from statistics import mean

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.claims.max_margin import (
    CHANNELS,
    INPUTS,
    SAME,
    SOLVED,
    TOKENS,
    Problem,
    alike,
    least_frobenius,
    margins_of,
    problem,
)

STEPS, RATE, START = 2000, 0.1, 0.01
SHOWN = (200, 500, 1000, 2000)
LENGTHS = ("of each layer", "of both layers")  # whose gradient is brought to length 1 before a step


def cases(full: bool) -> list[Case]:
    return [{"length": length, "seed": seed} for length in LENGTHS for seed in range(50 if full else 5)]


def measure(case: Case) -> Result:
    """Cosines of each layer's weights with the SVM of what it chooses, while they learn."""
    given = problem(case["seed"], equal=False)
    value = value_of(given)
    generator = torch.Generator().manual_seed(100 + case["seed"])
    layers = [START * torch.randn(CHANNELS, CHANNELS, generator=generator, dtype=torch.float64) for _ in range(2)]
    for layer in layers:
        layer.requires_grad_()
    found: dict[str, list[float]] = {"first_read": [], "first_all": [], "second": [], "gap": []}
    for step in range(1, STEPS + 1):
        slopes = torch.autograd.grad(loss_of(given, value, layers), layers)
        joint = math.sqrt(sum(slope.square().sum().item() for slope in slopes))
        with torch.no_grad():
            for layer, slope in zip(layers, slopes, strict=True):
                layer -= RATE * slope / (slope.norm() if case["length"] == LENGTHS[0] else joint)
        if step in SHOWN:
            for name, figure in compare(given, layers).items():
                found[name].append(figure)
    return found


def value_of(given: Problem) -> Tensor:
    """The vector (n,d) that scores each input's tokens, recovered exactly, as scores are linear in the tokens."""
    return torch.linalg.lstsq(given.tokens, given.scores[..., None]).solution[..., 0]


def first_layer(given: Problem, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Hidden states (n,T,d), each token plus what it attends to, and the token (n,T) it attends to most."""
    x = given.tokens
    scores = torch.einsum("nsd,de,nte->nts", x, weights, x)
    chosen = scores.argmax(-1)
    best = x.gather(1, chosen[..., None].expand_as(x))
    # As a difference from the chosen token: exact when a weight has become 1, where in float64 the rest would be 0.
    rest = torch.einsum("nts,ntsd->ntd", scores.softmax(-1), x[:, None] - best[:, :, None])
    return x + best + rest, chosen


def second_layer(given: Problem, hidden: Tensor, weights: Tensor) -> Tensor:
    """Scores (n,T) of the hidden states for the query of each input."""
    return torch.einsum("ntd,de,ne->nt", hidden, weights, given.queries)


def loss_of(given: Problem, value: Tensor, layers: list[Tensor]) -> Tensor:
    """The mean logistic loss of the second layer's output."""
    hidden, _ = first_layer(given, layers[0])
    scores = second_layer(given, hidden, layers[1])
    worth = torch.einsum("ntd,nd->nt", hidden, value)
    best = worth.gather(1, scores.argmax(1, keepdim=True))
    return F.softplus(-(best[:, 0] + (scores.softmax(-1) * (worth - best)).sum(1))).mean()


@torch.no_grad()
def compare(given: Problem, layers: list[Tensor]) -> dict[str, float]:
    """The cosine of each layer with the SVM of least Frobenius norm that prefers the tokens it chooses."""
    x = given.tokens
    hidden, chosen = first_layer(given, layers[0])
    scores = second_layer(given, hidden, layers[1])
    read = scores.argmax(1)
    inputs = torch.arange(INPUTS)
    every = Problem(x.repeat_interleave(TOKENS, 0), x.flatten(0, 1), scores)
    svms = {
        # The first layer has a query for every token; the second reads the answer to one of them.
        "first_read": least_frobenius(margins_of(Problem(x, x[inputs, read], scores), chosen[inputs, read])),
        "first_all": least_frobenius(margins_of(every, chosen.flatten())),
        "second": least_frobenius(margins_of(Problem(hidden, given.queries, scores), read)),
    }
    cosines = {name: alike(layers[name == "second"], svm) for name, (svm, _) in svms.items()}
    return cosines | {"gap": max(svms[name][1] for name in ("first_read", "second"))}


# ---------------------------------------------------------------- the verdict


def judge(found: Measurements) -> Finding:
    last = {length: {name: last_of(found, length, name) for name in NAMES} for length in LENGTHS}
    each, joint = last[LENGTHS[0]], last[LENGTHS[1]]
    solved = max(gaps[-1] for gaps in found.values("gap")) <= SOLVED
    second, read, every = (mean(each[name]) >= SAME for name in ("second", "first_read", "first_all"))
    verdict = Verdict.NOT_HERE
    if solved and second and read:
        verdict = Verdict.HOLDS if every else Verdict.IN_PART
    return Finding(
        measured=f"cosine with the SVM of its own inputs: second layer {spread(each['second'], '.4f')}; first layer "
        f"{spread(each['first_read'], '.4f')} for the queries whose answers are read, "
        f"{spread(each['first_all'], '.2f')} for all",
        verdict=verdict,
        reason=f"with steps of the same length in each layer the first is at {mean(each['first_read']):.3f} for the "
        f"queries that are read and the second at {mean(each['second']):.3f} (bound {SAME:g}); the other queries have "
        f"no gradient once the second layer has chosen, and over all the first is at {mean(each['first_all']):.3f}. "
        f"With one length for both layers it is at {mean(joint['first_read']):.3f} after as many steps. Which margins "
        "the first layer has is decided by the second, and no theorem says where they meet",
        table=ResultTable(
            ("gradient of length 1", "problems", "second layer", "first, queries read", "first, all queries"),
            [
                (length, str(len(last[length]["second"])), *(spread(last[length][name], ".3f") for name in NAMES))
                for length in LENGTHS
            ],
        ),
        plots=[steps_plot(found, length) for length in LENGTHS],
    )


NAMES = {"second": "second layer", "first_read": "first layer, queries read", "first_all": "first layer, all queries"}


def last_of(found: Measurements, length: str, name: str) -> list[float]:
    return [values[-1] for values in found.where(length=length).values(name)]


def steps_plot(found: Measurements, length: str) -> Plot:
    lines = {}
    for name, title in NAMES.items():
        means = [mean(values) for values in zip(*found.where(length=length).values(name), strict=True)]
        lines[title] = list(zip(SHOWN, means, strict=True))
    return Plot(f"Two layers, gradient {length} of length 1", "step", "cosine with the SVM", lines, log_across=True)


CLAIM = Claim(
    name="svm-hierarchy",
    claim="A Transformer of several layers is a hierarchy of SVMs: each layer separates its own inputs with the "
    "largest margin",
    lecture="L0",
    source="2308.16898 (Tarzanagh et al.), its interpretation, not its theorem",
    quoted="a hierarchy of SVMs; no figure",
    method=f"two attention layers with a residual, on {INPUTS} random inputs of {TOKENS} tokens in {CHANNELS} "
    f"channels, {STEPS} steps of normalised gradient descent in float64; each layer's weights beside the SVM of least "
    "Frobenius norm for the tokens that it chooses among its own inputs",
    cost="27 s of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

"""T5's five objectives for an encoder-decoder, ranked by the paper and as measured here (L3; R98)."""

from __future__ import annotations

from itertools import combinations

from torch import Tensor

from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict
from anyformer.lab.fit import lab_device
from anyformer.lab.library_text import VOCAB, library_blocks
from anyformer.lab.pretraining import pretrain, probe
from anyformer.objectives import Deshuffle, DropTokens, Mass, Objective, Prefix, Spans
from anyformer.presets.pairs import t5

# By T5's own order; what GLUE gave there (1910.10683, tables 4 and 5).
QUOTED = {"drop tokens": 84.44, "replace tokens": 83.28, "MASS-style": 82.32, "prefix LM": 80.69, "deshuffling": 73.17}
OBJECTIVES: dict[str, Objective] = {
    "drop tokens": DropTokens(),
    "replace tokens": Spans(mean_length=1),
    "MASS-style": Mass(),
    "prefix LM": Prefix(encoder=True),
    "deshuffling": Deshuffle(),
}
UNTRAINED = "untrained"
LENGTH, PROBED = 48, 256
WIDTH, DEPTH, STEPS = 64, 2, 250
WIDTH_FULL, DEPTH_FULL, STEPS_FULL = 256, 4, 5000
EQUAL = 0.005  # of all tokens: probes that differ by less are equally good


def cases(full: bool) -> list[Case]:
    seeds = range(5 if full else 3)
    return [{"objective": name, "seed": seed, "full": full} for name in (UNTRAINED, *OBJECTIVES) for seed in seeds]


def measure(case: Case) -> Result:
    """The probe accuracy of an encoder trained by an objective, or untrained."""
    full, seed = case["full"], case["seed"]
    steps, width, depth = (STEPS_FULL, WIDTH_FULL, DEPTH_FULL) if full else (STEPS, WIDTH, DEPTH)
    learned, held_out = library_blocks(LENGTH)
    spec = t5(width, depth, 4, size=width // 4, vocab=VOCAB, dropout=0.0)
    net = spec.build(seed=seed, device=lab_device(full))

    def features(tokens: Tensor) -> Tensor:
        return net.encode(tokens.to(next(net.parameters()).device))

    if case["objective"] != UNTRAINED:
        pretrain(net, OBJECTIVES[case["objective"]], learned, steps=steps, seed=seed, lr=2e-3)
        net.eval()
    return {"probe": probe(features, learned.some(PROBED), held_out)}


def judge(found: Measurements) -> Finding:
    by_name = {name: found.where(objective=name) for name in (UNTRAINED, *OBJECTIVES)}
    means = {name: each.mean("probe") for name, each in by_name.items()}
    order = sorted(OBJECTIVES, key=lambda name: -means[name])
    agree, differ = pairs_in_order(means)
    denoising = min(means[name] for name in ("drop tokens", "replace tokens", "MASS-style"))
    prefix_behind = denoising >= means["prefix LM"] - EQUAL
    deshuffling_last = min(denoising, means["prefix LM"]) > means["deshuffling"] + EQUAL
    learned = means[order[-1]] > means[UNTRAINED] + EQUAL
    if learned and prefix_behind and deshuffling_last:
        verdict = Verdict.HOLDS
    else:
        verdict = Verdict.IN_PART if learned and agree > differ else Verdict.NOT_HERE
    return Finding(
        measured="probe "
        + ", ".join(f"{name} {by_name[name].spread('probe', '.1%')}" for name in order)
        + f"; untrained {by_name[UNTRAINED].spread('probe', '.1%')}",
        verdict=verdict,
        reason=f"T5's order is {', '.join(QUOTED)}; of its ten pairs {agree} stand the same way here, {differ} the "
        f"other way and {10 - agree - differ} within {100 * EQUAL:g} points; denoising "
        f"{'does not stand' if prefix_behind else 'stands'} behind the prefix language model, and deshuffling is "
        f"{'last' if deshuffling_last else 'not last by more than that'}",
        table=ResultTable(
            ("objective", "T5's GLUE", "probe here"),
            [row(name, by_name[name]) for name in (*order, UNTRAINED)],
        ),
        plots=[
            Plot(
                "each objective, there and here", "GLUE in T5's tables", "probe here",
                {name: [(QUOTED[name], value) for value in by_name[name].values("probe")] for name in QUOTED},
                apart=True,
            )
        ],
    )  # fmt: skip


def pairs_in_order(means: dict[str, float]) -> tuple[int, int]:
    """Numbers of pairs of objectives in T5's order and in the reverse; nearly equal ones count as neither.

    >>> means = {"drop tokens": 0.9, "replace tokens": 0.8, "MASS-style": 0.8, "prefix LM": 0.7, "deshuffling": 0.75}
    >>> pairs_in_order(means)
    (8, 1)
    """
    gaps = [means[better] - means[worse] for better, worse in combinations(QUOTED, 2)]
    return sum(gap > EQUAL for gap in gaps), sum(gap < -EQUAL for gap in gaps)


def row(name: str, each: Measurements) -> tuple[str, ...]:
    quoted = f"{QUOTED[name]:.2f}" if name in QUOTED else "-"
    return (name, quoted, each.spread("probe", ".1%"))


CLAIM = Claim(
    name="t5-objectives",
    claim="Denoising teaches more than prefix language modelling, and that more than restoring the order of words",
    lecture="L3",
    source="1910.10683, tables 4 and 5",
    quoted="GLUE " + ", ".join(f"{name} {score:.2f}" for name, score in QUOTED.items()),
    method="a T5 of width 64, trained for as many steps by each objective on the source of Python's library; then a "
    "linear probe of its encoder for tokens inside strings and comments, in other files",
    cost="3 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

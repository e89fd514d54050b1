"""Rotary positions scaled into the trained range, against extrapolation (L3's SuperHOT slide; R24)."""

from __future__ import annotations

from statistics import mean

import torch
from torch import Tensor

from anyformer.checkpoints.changes import longer
from anyformer.core.model import Model
from anyformer.embeds import Tokens
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.claims.position_lengths import LENGTH, Writer, language_model, perplexity, texts, train
from anyformer.lab.fit import lab_device
from anyformer.positions import Rope

TIMES, STRETCH = (1, 2, 4, 8), 4
VOCAB, TOPIC_TOKENS, TOPIC_LASTS, LOCAL_SHARE, SURE = 16, 2, 24, 0.3, 0.9
LONG, TUNED = 4000, 200
# Of the perplexity that extrapolation has above the best tuned network, interpolation is to remove more than half, and
# tuning more than half of what is then left. After 600 steps a first seed removed 43 %: little learnt, little to lose.
MOST = 0.5


def drifting(rows: int, length: int, generator: torch.Generator) -> Tensor:
    """Texts whose topic changes now and then; some tokens follow from the previous one.

    Near tokens say more about the topic than far ones, gradually: only the previous token is at an exact distance.
    """
    follows = torch.randint(VOCAB, (VOCAB,), generator=torch.Generator().manual_seed(7))
    topic = (torch.rand(rows, length, generator=generator) < 1 / TOPIC_LASTS).long().cumsum(1)  # (B,T) which it is
    own = torch.randint(VOCAB, (rows, int(topic.max()) + 1, TOPIC_TOKENS), generator=generator)
    choice = torch.randint(TOPIC_TOKENS, (rows, length), generator=generator)
    by_topic = own[torch.arange(rows)[:, None], topic, choice]
    anything = torch.randint(VOCAB, (rows, length), generator=generator)
    by_topic = torch.where(torch.rand(rows, length, generator=generator) < SURE, by_topic, anything)
    local = torch.rand(rows, length, generator=generator) < LOCAL_SHARE
    made = by_topic.clone()
    for at in range(1, length):
        made[:, at] = torch.where(local[:, at], follows[made[:, at - 1]], by_topic[:, at])
    return made


# The texts of position-lengths came first: half their tokens follow from those exactly 1 and 3 back, and dividing
# positions by 4 hides these. They stay as the counterpart of the claim.
TEXTS: dict[str, Writer] = {"drifting topics": drifting, "exact distances": texts}


def cases(full: bool) -> list[Case]:
    steps, seeds = (LONG, (5, 5)) if full else (1000, (3, 2))
    both = zip(TEXTS, seeds, strict=True)
    return [{"texts": kind, "seed": seed, "steps": steps} for kind, count in both for seed in range(count)]


def network() -> Model:
    return language_model(Tokens(vocab=VOCAB, scale=True), Rope())


def measure(case: Case) -> Result:
    """Perplexities with extrapolation, with interpolation, and with both after fine-tuning at the length."""
    write, seed, steps = TEXTS[case["texts"]], case["seed"], case["steps"]
    device, far = lab_device(steps == LONG), STRETCH * LENGTH
    spec = network()
    net = spec.build(seed=seed, device=device)
    train(net, steps=steps, seed=seed, write=write)
    stretched = {times: longer(spec, net, times * LENGTH, trained=LENGTH).model for times in TIMES[1:]}
    extrapolated = [perplexity(net, times * LENGTH, write) for times in TIMES]
    interpolated = [extrapolated[0], *(perplexity(m, t * LENGTH, write) for t, m in stretched.items())]
    train(stretched[STRETCH], steps=TUNED, seed=100 + seed, length=far, lr=1e-3, write=write)
    train(net, steps=TUNED, seed=100 + seed, length=far, lr=1e-3, write=write)
    return {
        "extrapolated": extrapolated, "interpolated": interpolated,
        "tuned": perplexity(stretched[STRETCH], far, write), "tuned_plain": perplexity(net, far, write),
    }  # fmt: skip


def shares(found: Measurements) -> tuple[list[float], list[float]]:
    """For each seed: the share of the excess that interpolation removes, and the share of the rest that tuning removes.

    The excess is over the better of the two tuned networks, which may be the plain one.
    """
    at, removed, recovered = TIMES.index(STRETCH), [], []
    for _, one in found.entries:
        best = min(one["tuned"], one["tuned_plain"])
        before, squeezed = one["extrapolated"][at] - best, one["interpolated"][at] - best
        removed.append(1 - squeezed / before if before > 0 else 0.0)
        recovered.append(1 - (one["tuned"] - best) / squeezed if squeezed > 0 else 0.0)
    return removed, recovered


def judge(found: Measurements) -> Finding:
    holds, helps, said = [], [], []
    for kind in TEXTS:
        removed, recovered = shares(found.where(texts=kind))
        holds.append(min(removed) > MOST and min(recovered) > MOST)
        helps.append(min(removed) > 0 and min(recovered) > MOST)
        said.append(f"{kind}: {spread(removed, '.0%')} of the excess removed at once, "
                    f"{spread(recovered, '.0%')} of the rest by {TUNED} steps")  # fmt: skip
    verdict = Verdict.HOLDS if all(holds) else Verdict.IN_PART if any(helps) else Verdict.NOT_HERE
    at = TIMES.index(STRETCH)
    drift = found.where(texts="drifting topics")
    extrapolated, interpolated = (mean(one[at] for one in drift.values(n)) for n in ("extrapolated", "interpolated"))
    return Finding(
        measured=f"perplexity at {STRETCH}x, texts of drifting topics: extrapolated {extrapolated:.2f}, interpolated "
        f"{interpolated:.2f}, tuned {drift.mean('tuned'):.2f} (plain, tuned {drift.mean('tuned_plain'):.2f})",
        verdict=verdict,
        reason="; ".join(said) + f" (bound {MOST:.0%} of each, every seed); dividing positions blurs exact distances",
        table=ResultTable(
            ("texts and way", *(f"{times}x" for times in TIMES)),
            [row for kind in TEXTS for row in rows(kind, found.where(texts=kind))],
        ),
        plots=[lengths_plot(kind, found.where(texts=kind)) for kind in TEXTS],
    )


def rows(kind: str, found: Measurements) -> list[tuple[str, ...]]:
    curves = [(f"{kind}, {way}", *(spread(column, ".2f") for column in zip(*found.values(way), strict=True)))
              for way in ("extrapolated", "interpolated")]  # fmt: skip
    at = TIMES.index(STRETCH)
    ends = {"interpolated, tuned": "tuned", "plain, tuned": "tuned_plain"}
    single = [
        (f"{kind}, {said}", *("" if i != at else found.spread(name, ".2f") for i in range(len(TIMES))))
        for said, name in ends.items()
    ]
    return [*curves, *single]


def lengths_plot(kind: str, found: Measurements) -> Plot:
    tokens = [times * LENGTH for times in TIMES]
    lines = {}
    for way in ("extrapolated", "interpolated"):
        lines[way] = [(t, mean(c)) for t, c in zip(tokens, zip(*found.values(way), strict=True), strict=True)]
    for said, name in (("tuned", "tuned"), ("plain, tuned", "tuned_plain")):
        lines[said] = [(STRETCH * LENGTH, found.mean(name))]
    return Plot(f"{kind}, trained at {LENGTH} tokens", "tokens", "perplexity", lines, log_across=True)


CLAIM = Claim(
    name="position-interpolation",
    claim="With rotary positions divided by 4, a model reads 4 times its trained length far better than by "
    "extrapolation, and 200 steps of fine-tuning recover most of the rest",
    lecture="L3",
    source="2306.15595, tables 1 and 5: LLaMA-7B on PG-19, trained at 2048; SuperHOT: theta = p * 0.25",
    quoted="perplexity at 8192 tokens: extrapolated above 1000, interpolated 16.1 without fine-tuning, 7.12 after 200 "
    "steps",
    method=f"2 causal rotary layers of width 64 trained at {LENGTH} tokens; `longer` divides the positions; "
    f"perplexity at up to {TIMES[-1]} times the length, on texts with drifting topics and on texts with dependencies "
    "at exact distances; the network without interpolation is fine-tuned for as long, for comparison",
    cost="4 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

"""Greedy decoding against beam search: probability, quality and length of their outputs (L3; R46)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds import Tokens
from anyformer.evaluation.row_sums import bleu_of
from anyformer.generation import Generation, generate
from anyformer.heads import LM
from anyformer.lab.claim import Case, Claim, Finding, Measurements, Plot, Result, ResultTable, Verdict, spread
from anyformer.lab.fit import fit, lab_device
from anyformer.mixers import Attention, Cross
from anyformer.positions import Learned

PADDING, START, END, WORDS, SHORTEST, LONGEST = 0, 1, 2, 12, 4, 10
# Three common translation styles share their first word and then differ, a fourth starts with another: the common
# first word is the most probable one, and no sentence that begins with it is.
STYLES, COMMON = 3, 0.6
SYNONYM, TRUNCATED = 0.3, 0.1  # a rarer synonym for every third word; share of pairs whose translation is missing
OTHERS = (STYLES + 1) * WORDS  # ids of the words of all styles, then of the synonyms
BEAMS, PENALTIES = (1, 2, 4, 8), (0.0, 1.0)
STEPS, LONG, BATCH, TESTED = 400, 4000, 64, 256
Scored = Callable[[int, float, str], list[float]]  # by beams, length penalty and score, for each seed
SHORT = 0.9  # of the length of the references: below this, the output is too short


def cases(full: bool) -> list[Case]:
    return [{"seed": seed, "steps": LONG if full else STEPS} for seed in range(5 if full else 3)]


def pairs(rows: int, generator: torch.Generator, truncated: float = TRUNCATED) -> tuple[Tensor, Tensor]:
    """Sources (B,S) and their translations with the id that ends them (B,S+1), both padded."""
    length = torch.randint(SHORTEST, LONGEST + 1, (rows, 1), generator=generator)
    words = torch.randint(WORDS, (rows, LONGEST), generator=generator)
    common = torch.rand(rows, 1, generator=generator) < COMMON
    style = torch.where(common, torch.randint(1, STYLES + 1, (rows, 1), generator=generator), 0)  # (B,1)
    said = words + WORDS * style
    said[:, :1] = words[:, :1] + WORDS * common  # all common styles share their first word
    rarer = (words % 3 == 0) & (torch.rand(rows, LONGEST, generator=generator) < SYNONYM)
    rarer[:, 0] = False
    said = torch.where(rarer, said + OTHERS, said) + END + 1
    place = torch.arange(LONGEST)
    source = torch.where(place < length, words + END + 1, PADDING)
    length = torch.where(torch.rand(rows, 1, generator=generator) < truncated, 0, length)
    target = torch.where(place < length, said, PADDING)
    return source, F.pad(target, (0, 1)).scatter(1, length, END)


def network() -> Seq2Seq:
    block, place = Block(mixer=Attention(heads=4)), Learned(LONGEST + 2)
    reading, writing = (Stack(width=64, depth=1, causal=causal, block=block) for causal in (False, True))
    writing = writing.replace(block=block.replace(cross=Cross(heads=4)))
    return Seq2Seq(
        encoder=Model(embed=Tokens(vocab=WORDS + END + 1, position=place), stack=reading),
        decoder=Model(embed=Tokens(vocab=2 * OTHERS + END + 1, position=place), stack=writing),
        head=LM(tied=False),
    )


def loss_of(net: nn.Module, rows: int, generator: torch.Generator, device: torch.device) -> Tensor:
    source, target = (part.to(device) for part in pairs(rows, generator))
    given = F.pad(target[:, :-1], (1, 0), value=START)
    logits = net(source, given, source_mask=source != PADDING).logits
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PADDING)


def measure(case: Case) -> Result:
    device = lab_device(case["steps"] == LONG)
    net = network().build(seed=case["seed"], device=device)
    fit(net, lambda g: loss_of(net, BATCH, g, device), steps=case["steps"], seed=case["seed"])
    source, target = pairs(TESTED, torch.Generator().manual_seed(99), truncated=0.0)
    references = [words_of(row) for row in target.tolist()]
    source = source.to(device)
    found = {}
    for penalty in PENALTIES:
        for beams in BEAMS:
            settings = Generation(
                num_beams=beams, length_penalty=penalty, max_new_tokens=LONGEST + 1, eos_token_id=END,
                pad_token_id=PADDING, decoder_start_token_id=START,
            )  # fmt: skip
            out = generate(net, source, source != PADDING, settings=settings)
            found[name_of(beams, penalty)] = scores(
                [words_of(row) for row in out.new.tolist()], references, out.logprobs.sum(1).tolist()
            )
    return found


def name_of(beams: int, penalty: float) -> str:
    return f"{beams}, {penalty:g}"


def words_of(ids: Sequence[int]) -> list[int]:
    """The words before the end token."""
    return list(ids[: list(ids).index(END)]) if END in ids else [i for i in ids if i != PADDING]


def scores(said: list[list[int]], references: list[list[int]], logprobs: list[float]) -> dict[str, float]:
    counts = np.array([ngram_counts(one, true) for one, true in zip(said, references, strict=True)], dtype=float)
    same = [one == true for one, true in zip(said, references, strict=True)]
    lengths = sum(map(len, said)) / sum(map(len, references))
    return {"logprob": mean(logprobs), "exact": mean(same), "bleu": float(bleu_of(counts.sum(0))), "length": lengths}


def ngram_counts(said: Sequence[int], true: Sequence[int]) -> list[int]:
    """Matches and all n-grams for n of 1 to 4, and both lengths: what corpus BLEU sums."""
    matched, written = [], []
    for n in range(1, 5):
        mine, theirs = (Counter(zip(*(text[i:] for i in range(n)), strict=False)) for text in (said, true))
        matched.append((mine & theirs).total())
        written.append(mine.total())
    return [*matched, *written, len(said), len(true)]


# ---------------------------------------------------------------- judgement


def judge(found: Measurements) -> Finding:
    def each(beams: int, penalty: float, score: str) -> list[float]:
        return [one[score] for one in found.values(name_of(beams, penalty))]

    greedy = {score: each(1, 1.0, score) for score in ("logprob", "exact", "bleu")}
    better = {
        score: min(b - g for b, g in zip(each(4, 1.0, score), greedy[score], strict=True)) > 0
        for score in ("exact", "bleu")
    }
    found_more = min(b - g for b, g in zip(each(4, 0.0, "logprob"), greedy["logprob"], strict=True)) > 0
    falls_short = max(each(BEAMS[-1], 0.0, "length")) < SHORT
    kept = min(each(BEAMS[-1], 1.0, "length")) >= SHORT
    parts = [found_more, *better.values(), falls_short and kept]
    verdict = Verdict.HOLDS if all(parts) else Verdict.IN_PART
    if not found_more or not any(better.values()):
        verdict = Verdict.NOT_HERE
    return Finding(
        measured=f"greedy {spread(greedy['exact'], '.1%')} exact, BLEU {spread(greedy['bleu'], '.1f')}; 4 beams "
        f"{spread(each(4, 1.0, 'exact'), '.1%')}, {spread(each(4, 1.0, 'bleu'), '.1f')}; {BEAMS[-1]} beams without a "
        f"length penalty {spread(each(BEAMS[-1], 0.0, 'bleu'), '.1f')}",
        verdict=verdict,
        reason=f"4 beams find {'more' if found_more else 'no more'} probable texts in every seed "
        f"({mean(greedy['logprob']):.2f} to {mean(each(4, 0.0, 'logprob')):.2f} nats), "
        f"{'more' if better['exact'] else 'not more'} exact ones and {'a higher' if better['bleu'] else 'no higher'} "
        f"BLEU; {BEAMS[-1]} beams write {mean(each(BEAMS[-1], 0.0, 'length')):.0%} of the references' length without "
        f"the penalty and {mean(each(BEAMS[-1], 1.0, 'length')):.0%} with it (bound {SHORT:.0%} of each seed)",
        table=ResultTable(
            ("beams, length penalty", "log p of a text", "exact", "BLEU", "length"),
            [
                (name_of(b, p), spread(each(b, p, "logprob"), ".2f"), spread(each(b, p, "exact"), ".1%"),
                 spread(each(b, p, "bleu"), ".1f"), spread(each(b, p, "length"), ".2f"))
                for p in PENALTIES for b in BEAMS
            ],
        ),
        plots=[
            Plot("quality by beams", "beams", "BLEU", by_beams(each, "bleu"), log_across=True),
            Plot("what is found", "beams", "mean log p of a text", by_beams(each, "logprob"), log_across=True),
        ],
    )  # fmt: skip


def by_beams(each: Scored, score: str) -> dict[str, list[tuple[float, float]]]:
    return {f"length penalty {p:g}": [(b, mean(each(b, p, score))) for b in BEAMS] for p in PENALTIES}


CLAIM = Claim(
    name="greedy-or-beam",
    claim="Beam search finds more probable texts than greedy decoding and translates better; with many beams it needs "
    "a length penalty",
    lecture="L3",
    source="the lecture's slide on sampling a sentence; 1609.08144, section 7; Koehn and Knowles 2017, section 3.6; "
    "1706.03762, section 6.1",
    quoted="many strategies: greedy, beam search; Vaswani et al. decode with 4 beams and a length penalty of 0.6",
    method=f"an encoder-decoder of one layer each, width 64, trained on synthetic translations of {SHORTEST} to "
    f"{LONGEST} words: {STYLES} common translation styles share their first word and then differ, a fourth starts "
    f"with another word, and {TRUNCATED:.0%} of the pairs lack their translation; {TESTED} sentences are decoded by "
    f"`generate` with {', '.join(map(str, BEAMS))} beams",
    cost="3 min of one core",
    cases=cases,
    measure=measure,
    judge=judge,
)

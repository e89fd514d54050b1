"""Greedy against beam search: the judge can go red, and what is decoded is counted rightly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from anyformer.evaluation.row_sums import bleu_of
from anyformer.lab.claim import Measurements, Verdict
from anyformer.lab.claims import greedy_or_beam as claim

GREEDY = {"logprob": -2.4, "exact": 0.1, "bleu": 15.0, "length": 1.0}
BEAM = {"logprob": -1.8, "exact": 0.24, "bleu": 33.0, "length": 1.0}
SHORT = {"logprob": -1.7, "exact": 0.2, "bleu": 25.0, "length": 0.8}


def measured(**change: dict[str, Any]) -> Verdict:
    """The verdict where some of the ways of decoding found something else."""
    result: dict[str, Any] = {}
    for penalty in claim.PENALTIES:
        for beams in claim.BEAMS:
            result[claim.name_of(beams, penalty)] = GREEDY if beams == 1 else BEAM if penalty or beams < 4 else SHORT
    result |= {name.removeprefix("beams_").replace("_", ", "): value for name, value in change.items()}
    return claim.CLAIM.judge(Measurements([(case, result) for case in claim.cases(False)])).verdict


def test_good_measurements_hold() -> None:
    assert measured() is Verdict.HOLDS


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"beams_4_0": SHORT | {"logprob": -3.0}}, Verdict.NOT_HERE),  # beams find less
        ({"beams_4_1": BEAM | {"exact": 0.05, "bleu": 9.0}}, Verdict.NOT_HERE),  # and are no better for it
        ({"beams_4_1": BEAM | {"bleu": 9.0}}, Verdict.IN_PART),
        ({"beams_8_0": SHORT | {"length": 1.0}}, Verdict.IN_PART),  # nothing falls short
        ({"beams_8_1": BEAM | {"length": 0.8}}, Verdict.IN_PART),  # the penalty does not help
    ],
)
def test_bad_measurements_do_not_hold(change: dict[str, Any], verdict: Verdict) -> None:
    assert measured(**change) is verdict


def test_the_most_probable_first_word_leads_to_no_probable_sentence() -> None:
    """What the toy is made for: of one source the common first word is written more often, the rare sentence is."""
    _, target = claim.pairs(40_000, torch.Generator().manual_seed(0), truncated=0.0)
    said = [tuple(claim.words_of(row)) for row in target.tolist()]
    first = claim.END + 1
    rare = [one for one in said if one[0] < first + claim.WORDS]
    assert len(rare) / len(said) == pytest.approx(1 - claim.COMMON, abs=0.02)
    styles = [(one[1] - first) % claim.OTHERS // claim.WORDS for one in said if one[0] >= first + claim.WORDS]
    share = max(styles.count(style) for style in set(styles)) / len(said)
    assert set(styles) == {1, 2, 3} and share < 0.25 < len(rare) / len(said)


def test_counts_give_the_bleu_of_the_definition() -> None:
    same = torch.tensor([claim.ngram_counts([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])]).double().numpy()
    assert bleu_of(same.sum(0)) == pytest.approx(100)
    counts = claim.ngram_counts([1, 2, 3, 4], [1, 2, 3, 5, 6])
    assert counts == [3, 2, 1, 0, 4, 3, 2, 1, 4, 5]
    found = bleu_of(torch.tensor(counts).double().numpy())
    assert found == pytest.approx(100 * math.exp(1 - 5 / 4) * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)


def test_every_way_of_decoding_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "TESTED", 16)
    found = claim.measure({"seed": 0, "steps": 5})
    assert len(found) == len(claim.BEAMS) * len(claim.PENALTIES)
    # with one beam a length penalty changes nothing, and more beams find what is at least as probable
    assert found["1, 0"] == found["1, 1"] and found["8, 0"]["logprob"] >= found["1, 0"]["logprob"]

"""Claims on recurrences: good figures hold, bad ones do not, and a cheap case really measured keeps its bound."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anyformer.lab.claim import Measurements, Verdict
from anyformer.lab.claims import (
    bahdanau_alignment,
    dependency_distance,
    rnn_bottleneck,
    sequential_time,
    vanishing_gradients,
)

DECAYS = {"rnn": 0.5, "gru": 0.6, "lstm": 0.8, "attention": 1.0}


def fading(decays: dict[str, float]) -> Measurements:
    """Two seeds of a gradient that loses the same share at every token."""
    reaches = {name: [decay**d for d in range(vanishing_gradients.LENGTH)] for name, decay in decays.items()}
    return Measurements([({"mixer": n, "seed": s}, {"reach": reach}) for n, reach in reaches.items() for s in (0, 1)])


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, Verdict.HOLDS),
        ({"rnn": 1.0}, Verdict.NOT_HERE),  # nothing vanishes
        ({"attention": 0.5}, Verdict.NOT_HERE),  # attention loses it too
        ({"lstm": 1.0}, Verdict.IN_PART),  # one recurrence keeps it
        ({"gru": 0.4}, Verdict.IN_PART),  # gates reach less far than none
    ],
)
def test_vanishing_gradients_are_judged_by_their_figures(changed: dict[str, float], verdict: Verdict) -> None:
    assert vanishing_gradients.CLAIM.judge(fading(DECAYS | changed)).verdict is verdict


@pytest.mark.parametrize(("mixer", "low", "high"), [("rnn", 0.0, 1e-12), ("attention", 0.1, 10.0)])
def test_gradient_left_64_tokens_back(mixer: str, low: float, high: float) -> None:
    reach = vanishing_gradients.CLAIM.measure({"mixer": mixer, "seed": 0})["reach"]
    assert reach[0] == 1.0
    assert low <= reach[64] <= high


ACCURACIES = {
    "first": [1.0, 0.8, 0.6, 0.4, 0.3],
    "every": [1.0, 0.85, 0.7, 0.5, 0.4],
    "attention": [1.0, 1.0, 1.0, 1.0, 0.99],
}


def by_length(curves: dict[str, list[float]]) -> Measurements:
    return Measurements([({"context": name, "seed": s}, {"right": c}) for name, c in curves.items() for s in (0, 1)])


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, Verdict.HOLDS),
        ({"every": ACCURACIES["first"]}, Verdict.IN_PART),  # the vector at every step helps nobody
        ({"every": [1.0] * 5}, Verdict.NOT_HERE),  # one vector is no bottleneck
        ({"attention": ACCURACIES["every"]}, Verdict.NOT_HERE),  # attention falls too
    ],
)
def test_the_bottleneck_is_judged_by_its_curves(changed: dict[str, list[float]], verdict: Verdict) -> None:
    assert rnn_bottleneck.CLAIM.judge(by_length(ACCURACIES | changed)).verdict is verdict


def test_attention_writes_what_one_vector_cannot_hold() -> None:
    """Before training too little is right for any of them; after a while attention alone is right on long sentences."""
    untrained, trained = (
        rnn_bottleneck.measure({"context": "attention", "seed": 0, "steps": steps})["right"] for steps in (1, 100)
    )
    assert max(untrained) < 0.15 and min(trained[:3]) > 0.5


def aligned(diagonal: float) -> dict[str, Any]:
    offsets = [0.0] * (2 * bahdanau_alignment.LONGEST - 1)
    return {"diagonal": diagonal, "within_one": 1.0, "on_symbol": 0.7, "right": 1.0, "offsets": offsets}


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, Verdict.HOLDS),
        ({bahdanau_alignment.UNPLACED: 0.2}, Verdict.IN_PART),  # it has to be told where symbols stand
        ({bahdanau_alignment.MAIN: 0.9}, Verdict.NOT_HERE),
        ({bahdanau_alignment.CONTROL: 0.9}, Verdict.NOT_HERE),  # a diagonal where there is no order
    ],
)
def test_alignments_are_judged_by_their_diagonals(changed: dict[str, float], verdict: Verdict) -> None:
    shares = dict.fromkeys(bahdanau_alignment.NETS, 0.99) | {bahdanau_alignment.CONTROL: 0.2} | changed
    found = Measurements([({"net": net, "seed": 0}, aligned(share)) for net, share in shares.items()])
    assert bahdanau_alignment.CLAIM.judge(found).verdict is verdict


def test_alignments_lie_on_the_diagonal_of_a_monotone_task_alone() -> None:
    ordered, control = (
        bahdanau_alignment.measure({"net": net, "seed": 0, "steps": 100})
        for net in (bahdanau_alignment.MAIN, bahdanau_alignment.CONTROL)
    )
    assert ordered["diagonal"] >= 0.95 and ordered["right"] >= 0.95
    assert control["diagonal"] < 0.5 and sum(control["offsets"]) == pytest.approx(1)


def test_sorted_sentences_name_the_symbol_behind_each_translation() -> None:
    source, target, order = bahdanau_alignment.sentences("sorted", 5, 6, torch.Generator().manual_seed(0))
    assert torch.equal(target, bahdanau_alignment.translation(source.gather(1, order)))
    assert torch.equal(source.gather(1, order), source.sort(1).values)


def growing(changed: dict[str, float]) -> Measurements:
    """Steps that take so many times as long at the longest as at the shortest, growing evenly in between."""
    growth = {"rnn": 4.0, "gru": 8.0, "lstm": 3.0, "attention": 4.0} | changed
    lengths = [16 * 2**i for i in range(8)]
    return Measurements([
        ({"mixer": name, "length": n}, {"seconds": times ** (max(0, i - 3) / 4)})
        for name, times in growth.items() for i, n in enumerate(lengths)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, Verdict.HOLDS),
        ({"lstm": 1.2}, Verdict.IN_PART),
        ({"attention": 1.0}, Verdict.IN_PART),  # attention never dominates
        ({"rnn": 1.0, "gru": 1.0, "lstm": 1.0}, Verdict.NOT_HERE),
    ],
)
def test_sequential_time_is_judged_by_its_growth(changed: dict[str, float], verdict: Verdict) -> None:
    assert sequential_time.CLAIM.judge(growing(changed)).verdict is verdict


def test_a_transformer_that_grows_from_the_start_does_not_hold() -> None:
    found = growing({})
    steep = [(c, {"seconds": c["length"]} if c["mixer"] == "attention" else r) for c, r in found.entries]
    assert sequential_time.CLAIM.judge(Measurements(steep)).verdict is Verdict.NOT_HERE


def test_a_gru_takes_longer_for_longer_texts() -> None:
    short, long = (
        sequential_time.measure({"mixer": "gru", "length": length, "tokens": 1024, "repeat": 0})["seconds"]
        for length in (16, 1024)
    )
    assert 0 < 1.5 * short < long


def reaching(changed: dict[tuple[str, int], float], parameters: int = 1000) -> Measurements:
    known = {(name, d): 1.0 for name in dependency_distance.BLOCKS for d in dependency_distance.DISTANCES}
    known |= {("convolution", d): 0.125 for d in dependency_distance.DISTANCES if d > dependency_distance.FIELD}
    return Measurements([
        ({"mixer": name, "distance": d, "seed": 0},
         {"accuracy": value, "parameters": parameters if name == "convolution" else 1000})
        for (name, d), value in (known | changed).items()
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (reaching({}), Verdict.HOLDS),
        (reaching({("attention", 16): 0.6}), Verdict.IN_PART),
        (reaching({("convolution", 16): 0.6}), Verdict.NOT_HERE),  # it sees beyond its field
        (reaching({("convolution", 1): 0.6}), Verdict.NOT_HERE),  # it has not learnt what it sees
        (reaching({}, parameters=2000), Verdict.NOT_HERE),  # not of equal size
    ],
)
def test_distances_are_judged_by_their_accuracy(found: Measurements, verdict: Verdict) -> None:
    assert dependency_distance.CLAIM.judge(found).verdict is verdict


def test_a_convolution_sees_six_tokens_back_and_no_more() -> None:
    near, far = (
        dependency_distance.measure({"mixer": "convolution", "distance": distance, "seed": 0, "steps": 60})["accuracy"]
        for distance in (6, 7)
    )
    assert near > 0.5 > 0.25 > far

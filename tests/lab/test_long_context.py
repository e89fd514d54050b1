"""The claims about longer texts and smaller caches: their judges can go red, and cheap cases are really measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from anyformer.lab.claim import Case, Claim, Measurements, Result, Verdict
from anyformer.lab.claims import (
    associative_recall,
    grouped_heads,
    hyena_crossover,
    position_interpolation,
    position_lengths,
)


def good_interpolation(case: Case) -> Result:
    return {"extrapolated": [5.0, 6.0, 9.0, 20.0], "interpolated": [5.0, 5.5, 6.0, 7.0], "tuned": 5.1,
            "tuned_plain": 5.2}  # fmt: skip


def good_groups(case: Case) -> Result:
    if case["what"] == "decode":
        heads = grouped_heads.SHARED[case["heads"]]
        return {"ms": 1.0 + heads, "bytes": 100 * heads, "exact": 100 * heads}
    at_once = {f"{name} {way}": 1.5 + 0.1 * place for name in ("GQA", "MQA")
               for place, way in enumerate(("mean", "first head", "random"))}  # fmt: skip
    return {"scratch": {"MHA": 1.3, "GQA": 1.3, "MQA": 1.32}, "converted": at_once,
            "uptrained": dict.fromkeys(at_once, 1.305), "longer": {"GQA mean": 1.3, "MQA mean": 1.3}}  # fmt: skip


def good_crossover(case: Case) -> Result:
    length = case["length"]
    return {"attention": length**2 / 1e4, "hyena": length * 0.1}  # equal at 1,000


def good_recall(case: Case) -> Result:
    return {"accuracy": 1.0 if case["mixer"] in ("hyena", "attention") else 0.3, "steps": 300}


GOOD: list[tuple[Claim, Callable[[Case], Result]]] = [
    (position_interpolation.CLAIM, good_interpolation),
    (grouped_heads.CLAIM, good_groups),
    (hyena_crossover.CLAIM, good_crossover),
    (associative_recall.CLAIM, good_recall),
]


def judged(claim: Claim, measured: Callable[[Case], Result], full: bool = False) -> Verdict:
    return claim.judge(Measurements([(case, measured(case)) for case in claim.cases(full)])).verdict


@pytest.mark.parametrize(("claim", "good"), GOOD, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("full", [False, True])
def test_good_measurements_hold(claim: Claim, good: Callable[[Case], Result], full: bool) -> None:
    assert judged(claim, good, full) is Verdict.HOLDS


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"interpolated": [5.0, 5.5, 8.0, 9.0]}, Verdict.IN_PART),  # better at once, by less than half
        ({"interpolated": [5.0, 9.0, 12.0, 15.0]}, Verdict.NOT_HERE),  # worse than running past the length
        ({"tuned": 5.9}, Verdict.NOT_HERE),  # tuning recovers too little
    ],
)
def test_interpolation_is_judged_by_both_shares(change: dict[str, Any], verdict: Verdict) -> None:
    assert judged(position_interpolation.CLAIM, lambda case: {**good_interpolation(case), **change}) is verdict


def test_interpolation_holds_in_part_where_exact_distances_suffer() -> None:
    def measured(case: Case) -> Result:
        worse = {"interpolated": [5.0, 9.0, 12.0, 15.0]} if case["texts"] == "exact distances" else {}
        return {**good_interpolation(case), **worse}

    assert judged(position_interpolation.CLAIM, measured) is Verdict.IN_PART


@pytest.mark.parametrize(
    ("what", "change", "verdict"),
    [
        ("decode", {"bytes": 99}, Verdict.NOT_HERE),  # a cache of another size
        ("decode", {"ms": 5.0}, Verdict.IN_PART),  # no faster
        (
            "train",
            {"uptrained": {f"{n} {w}": 1.4 for n in ("GQA", "MQA") for w in grouped_heads.WAYS}},
            Verdict.IN_PART,
        ),
        (
            "train",
            {"converted": {f"{n} {w}": 1.5 for n in ("GQA", "MQA") for w in grouped_heads.WAYS}},
            Verdict.IN_PART,
        ),
    ],
)
def test_groups_are_judged_by_bytes_speed_and_loss(what: str, change: dict[str, Any], verdict: Verdict) -> None:
    def measured(case: Case) -> Result:
        return {**good_groups(case), **(change if case["what"] == what else {})}

    assert judged(grouped_heads.CLAIM, measured) is verdict


@pytest.mark.parametrize(
    ("attention", "hyena", "verdict"),
    [
        (lambda t: t / 10, lambda t: t / 5, Verdict.NOT_HERE),  # both linear: they never meet
        (lambda t: t**2 / 1e4, lambda t: t**2 / 1e5, Verdict.NOT_HERE),  # Hyena quadratic too
        (lambda t: t**2 / 1e6, lambda t: t * 0.1, Verdict.IN_PART),  # they meet beyond the lengths measured
    ],
)
def test_a_crossover_must_be_measured(
    attention: Callable[[int], float], hyena: Callable[[int], float], verdict: Verdict
) -> None:
    def measured(case: Case) -> Result:
        return {"attention": attention(case["length"]), "hyena": hyena(case["length"])}

    assert judged(hyena_crossover.CLAIM, measured) is verdict


def test_the_crossover_is_where_the_times_are_equal() -> None:
    lengths = [256, 512, 1024, 2048]
    crossed, measured = hyena_crossover.crossover(lengths, [t**2 / 1e4 for t in lengths], [t / 10 for t in lengths])
    assert measured and crossed == pytest.approx(1000)
    beyond, measured = hyena_crossover.crossover(lengths, [t**2 / 1e5 for t in lengths], [t / 10 for t in lengths])
    assert not measured and beyond == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"hyena": 0.8}, Verdict.NOT_HERE),
        ({"recurrent": 0.95}, Verdict.IN_PART),
        ({"convolution": 0.7}, Verdict.IN_PART),
    ],
)
def test_recall_is_judged_by_each_mixer(change: dict[str, float], verdict: Verdict) -> None:
    def measured(case: Case) -> Result:
        return {**good_recall(case), **({"accuracy": change[case["mixer"]]} if case["mixer"] in change else {})}

    assert judged(associative_recall.CLAIM, measured) is verdict


# ---------------------------------------------------------------- really measured


def test_half_of_the_drifting_texts_repeat_their_topic() -> None:
    made = position_interpolation.drifting(40, 200, torch.Generator().manual_seed(0))
    near, far = ((made[:, lag:] == made[:, :-lag]).float().mean().item() for lag in (2, 150))
    assert made.min() >= 0 and made.max() < position_interpolation.VOCAB
    assert near > 2 * far  # tokens of one topic are alike, those of another are not


def test_interpolation_is_measured_at_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_interpolation, "TUNED", 20)
    found = position_interpolation.measure({"texts": "exact distances", "seed": 0, "steps": 0})
    assert all(math.isfinite(value) for way in ("extrapolated", "interpolated") for value in found[way])
    assert found["extrapolated"][0] == found["interpolated"][0] and found["tuned"] < found["extrapolated"][2]


def test_cache_bytes_are_exact_for_every_number_of_heads() -> None:
    found = {heads: grouped_heads.decode(heads, 2, 32, torch.device("cpu")) for heads in (1, 2, 8)}
    assert all(one["bytes"] == one["exact"] for one in found.values())
    assert found[8]["bytes"] == 8 * found[1]["bytes"] == 4 * found[2]["bytes"]


def test_the_three_ways_of_converting_differ_as_they_say() -> None:
    net = grouped_heads.language_model(8).build(seed=0)
    same = grouped_heads.with_keys_and_values(net, lambda kv: kv)
    for before, after in zip(net.parameters(), same.parameters(), strict=True):
        assert torch.equal(before, after)
    first = grouped_heads.first_of_group(net, 2, 0).stack.blocks[0].mixer.qkv.weight.unflatten(0, (8, -1))
    own = net.stack.blocks[0].mixer.qkv.weight.unflatten(0, (8, -1))
    channels = own.shape[1] // 3
    assert torch.equal(first[:, :channels], own[:, :channels])  # queries stay
    assert all(torch.equal(first[h, channels:], own[4 * (h // 4), channels:]) for h in range(8))
    assert not torch.equal(own[1, channels:], own[0, channels:])  # control


def test_attention_falls_behind_hyena_with_the_length() -> None:
    ratios = [one["attention"] / one["hyena"] for one in
              (hyena_crossover.measure({"length": t, "repeat": 0, "full": False}) for t in (128, 2048))]  # fmt: skip
    assert ratios[1] > 2 * ratios[0]


def test_a_mixer_is_trained_and_judged_on_recall() -> None:
    case = {"mixer": "recurrent", "length": 16, "vocab": 6, "steps": 100, "seed": 0, "full": False}
    found = associative_recall.measure(case)
    untrained = associative_recall.measure({**case, "steps": 0})
    assert found["accuracy"] > 0.75 > untrained["accuracy"]


def test_lengths_grow_over_the_first_half() -> None:
    planned = associative_recall.lengths(512, 60, grow=True)
    assert planned[0] == associative_recall.SHORTEST and planned == sorted(planned) and planned[30:] == [512] * 30
    assert associative_recall.lengths(512, 4, grow=False) == [512] * 4


def test_writers_of_texts_share_training_and_perplexity() -> None:
    net = position_lengths.network("alibi").build(seed=0)
    before = position_lengths.perplexity(net, 32)
    position_lengths.train(net, steps=20, seed=0)
    assert position_lengths.perplexity(net, 32) < 0.8 * before

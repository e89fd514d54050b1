"""The claims about attention: their judges can go red, and cheap cases are really measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from anyformer.lab.claim import Case, Claim, Measurements, Result, Verdict
from anyformer.lab.claims import attention_as_convolution, soft_dictionary, softmax_scale

Change = Callable[[Case], Mapping[str, Any]]


def sharpness(max_p: float, dead: float) -> dict[str, float]:
    return {"max_p": max_p, "entropy": 1.0, "dead": dead, "jacobian": 0.1}


def good_scale(case: Case) -> Result:
    if case["what"] == "train":
        return {"curve": [1.0, 0.5], "loss": 0.1 if case["scale"] == "sqrt" else 0.9}
    dead = {16: 0.01, 512: 0.51}.get(case["d_k"], 0.1)
    return {"plain": sharpness(0.92, dead), "scaled": sharpness(0.07, 0.0)}


def good_dictionary(case: Case) -> Result:
    if case["what"] == "cost":
        return {"pairs": case["length"] ** 2, "sums": case["length"]}
    if case["what"] == "kernel":
        return {"softmax": 1e-15, "linear": 1e-15, "other": 1.0}
    temperature = case["temperature"]
    return {
        "from_value": 0.0 if temperature == 0.01 else 0.4,
        "from_average": 1e-10 if temperature == 1e9 else 0.1,
    }


def good_convolution(case: Case) -> Result:
    gap = 1e-14 if case["sharpness"] == 1000 else 1.0
    return {"gap": gap, "without_a_head": 5.0, "heads": case["kernel"] ** 2}


CLAIMS = {
    "softmax-scale": (softmax_scale.CLAIM, good_scale),
    "soft-dictionary": (soft_dictionary.CLAIM, good_dictionary),
    "attention-as-convolution": (attention_as_convolution.CLAIM, good_convolution),
}

# What breaks a claim: a change of the good results, by the claim's name.
BROKEN: list[tuple[str, Change]] = [
    ("softmax-scale", lambda case: {"scaled": sharpness(0.9, 0.5)} if case["what"] == "start" else {}),
    ("softmax-scale", lambda case: {"plain": sharpness(0.07, 0.0)} if case["what"] == "start" else {}),
    ("softmax-scale", lambda case: {"loss": 0.5} if case["what"] == "train" else {}),
    ("soft-dictionary", lambda case: {"from_value": 0.4} if case["what"] == "dictionary" else {}),
    ("soft-dictionary", lambda case: {"softmax": 1e-3} if case["what"] == "kernel" else {}),
    ("soft-dictionary", lambda case: {"sums": case["length"] ** 2} if case["what"] == "cost" else {}),
    ("attention-as-convolution", lambda case: {"gap": 1e-3}),
    ("attention-as-convolution", lambda case: {"without_a_head": 0.0}),
    ("attention-as-convolution", lambda case: {"heads": 1}),
]


def judged(claim: Claim, result: Callable[[Case], Result]) -> Verdict:
    return claim.judge(Measurements([(case, result(case)) for case in claim.cases(True)])).verdict


@pytest.mark.parametrize("name", CLAIMS)
def test_good_measurements_hold(name: str) -> None:
    claim, good = CLAIMS[name]
    assert claim.name == name
    assert judged(claim, good) is Verdict.HOLDS


@pytest.mark.parametrize(("name", "change"), BROKEN)
def test_bad_measurements_do_not_hold(name: str, change: Change) -> None:
    claim, good = CLAIMS[name]
    assert judged(claim, lambda case: {**good(case), **change(case)}) is not Verdict.HOLDS


def test_unscaled_rows_of_512_channels_are_sharp_and_half_dead() -> None:
    result = softmax_scale.measure({"what": "start", "d_k": 512, "seed": 0})
    assert result["plain"]["max_p"] > 0.85 and result["plain"]["dead"] > 0.4
    assert result["scaled"]["max_p"] < 0.1 and result["scaled"]["dead"] == 0


def test_cold_attention_is_a_dictionary_and_a_kernel_average() -> None:
    assert soft_dictionary.measure({"what": "dictionary", "temperature": 0.01, "seed": 0})["from_value"] < 1e-6
    kernel = soft_dictionary.measure({"what": "kernel", "seed": 0})
    assert max(kernel["softmax"], kernel["linear"]) < 1e-9 < kernel["other"]


def test_nine_hard_heads_are_a_convolution() -> None:
    result = attention_as_convolution.measure({"kernel": 3, "sharpness": 1000.0, "seed": 0})
    assert result["gap"] < 1e-9 and result["without_a_head"] > 1e-2 and result["heads"] == 9

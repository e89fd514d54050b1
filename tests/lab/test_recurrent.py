"""Claims on recurrences: good figures hold, bad ones do not, and a cheap case really measured keeps its bound."""

from __future__ import annotations

import pytest

from anyformer.lab.claim import Measurements, Verdict
from anyformer.lab.claims import vanishing_gradients

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

"""The claim that one masked pass trains all positions: its judge can go red, and a cheap case is really measured."""

from __future__ import annotations

from typing import Any

import pytest

from anyformer.lab.claim import Case, Measurements, Result, Verdict
from anyformer.lab.claims.all_positions import CLAIM


def good(case: Case) -> Result:
    return {"loss": 1e-16, "gradient": 1e-15, "unmasked": 0.05, "speed_up": case["length"] / 2}


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, Verdict.HOLDS),
        ({"loss": 1e-3}, Verdict.NOT_HERE),  # another loss than that of separate passes
        ({"gradient": 1e-3}, Verdict.NOT_HERE),
        ({"unmasked": 1e-9}, Verdict.NOT_HERE),  # the control sees no difference either
        ({"speed_up": 1.1}, Verdict.IN_PART),
    ],
)
def test_the_claim_is_judged_by_its_figures(change: dict[str, Any], verdict: Verdict) -> None:
    found = Measurements([(case, {**good(case), **change}) for case in CLAIM.cases(False)])
    assert CLAIM.judge(found).verdict is verdict


def test_one_pass_equals_a_pass_for_every_token_and_without_a_mask_does_not() -> None:
    found = CLAIM.measure({"length": 8, "seed": 0})
    assert max(found["loss"], found["gradient"]) < 1e-9 < 1e-2 < found["unmasked"]

"""The claims about positions and the cache: their judges can go red, and cheap cases are really measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anyformer.lab.claim import Case, Claim, Measurements, Result, Verdict
from anyformer.lab.claims import alibi_protocols, image_positions, kv_cache, position_lengths, sinusoids

GROWTH = {"sinusoid": 2.0, "rope": 1.3, "alibi": 1.0}


def good_sinusoids(case: Case) -> Result:
    return {"rotation": 1e-13, "fitted": 1e-13, "fitted_noise": 1.0, "printed": 4e-7, "wrong_bits": 0,
            "flips": [8, 4, 2, 1], "similarity": [1.0, 0.5]}  # fmt: skip


def good_lengths(case: Case) -> Result:
    if case["position"] == "learned":
        return {"perplexity": [5.0, None, None, None, None]}
    return {"perplexity": [5.0, 5.0, 5.0, 5.0, 5.0 * GROWTH.get(case["position"], 1.1)]}


def good_protocols(case: Case) -> Result:
    if case["position"] == "sinusoid":
        return {"apart": [5.0, 5.5, 6.0, 7.0], "sliding": [5.0, 6.0, 7.0, 8.0]}
    return {"apart": [5.0, 4.8, 4.6, 4.5], "sliding": [4.6, 4.58, 4.56, 4.55]}


def good_images(case: Case) -> Result:
    return {"few": 197, "many": 785, "wide": 393, "finite": True, "same": 0.0, "slide": 0.0, "smooth": 0.04,
            "first_rows": 1.4}  # fmt: skip


def good_cache(case: Case) -> Result:
    speed_up = case["tokens"] / 32
    return {"with_cache": 1.0, "without": speed_up, "speed_up": speed_up, "difference": 1e-6}


GOOD: list[tuple[Claim, Callable[[Case], Result]]] = [
    (sinusoids.CLAIM, good_sinusoids),
    (position_lengths.CLAIM, good_lengths),
    (alibi_protocols.CLAIM, good_protocols),
    (image_positions.CLAIM, good_images),
    (kv_cache.CLAIM, good_cache),
]
BAD: list[tuple[Claim, Callable[[Case], Result], dict[str, Any]]] = [
    (sinusoids.CLAIM, good_sinusoids, {"rotation": 0.1}),
    (sinusoids.CLAIM, good_sinusoids, {"fitted_noise": 1e-9}),
    (sinusoids.CLAIM, good_sinusoids, {"wrong_bits": 1}),
    (sinusoids.CLAIM, good_sinusoids, {"printed": 1e-3}),
    (position_lengths.CLAIM, good_lengths, {"perplexity": [5.0, 5.0, 5.0, 5.0, 5.0]}),
    (position_lengths.CLAIM, good_lengths, {"perplexity": [5.0, 6.0, 7.0, 8.0, 10.0]}),
    (alibi_protocols.CLAIM, good_protocols, {"apart": [5.0, 5.0, 5.0, 5.0]}),  # no gain, no curse
    (alibi_protocols.CLAIM, good_protocols, {"sliding": [5.0, 4.8, 4.6, 4.5]}),  # all of it is left
    (image_positions.CLAIM, good_images, {"many": 784}),
    (image_positions.CLAIM, good_images, {"same": 1e-3}),
    (image_positions.CLAIM, good_images, {"first_rows": 0.01}),
    (kv_cache.CLAIM, good_cache, {"speed_up": 1.0}),
    (kv_cache.CLAIM, good_cache, {"difference": 0.1}),
]


@pytest.mark.parametrize(("claim", "good"), GOOD, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("full", [False, True])
def test_good_measurements_hold(claim: Claim, good: Callable[[Case], Result], full: bool) -> None:
    finding = claim.judge(Measurements([(case, good(case)) for case in claim.cases(full)]))
    assert finding.verdict is Verdict.HOLDS, finding.reason


@pytest.mark.parametrize(("claim", "good", "change"), BAD, ids=lambda value: getattr(value, "name", ""))
def test_bad_measurements_do_not_hold(claim: Claim, good: Callable[[Case], Result], change: dict[str, Any]) -> None:
    finding = claim.judge(Measurements([(case, {**good(case), **change}) for case in claim.cases(False)]))
    assert finding.verdict is not Verdict.HOLDS


def test_a_step_is_one_rotation_and_noise_has_none() -> None:
    found = sinusoids.measure({"width": 8, "step": 17})
    assert found["rotation"] < 1e-9 and found["fitted"] < 1e-6 and found["wrong_bits"] == 0
    assert found["fitted_noise"] > 0.1


def test_a_grid_of_other_size_and_of_the_same() -> None:
    found = image_positions.measure({"seed": 0})
    assert (found["few"], found["many"], found["same"]) == (197, 785, 0.0)


def test_the_cache_gives_the_same_logits() -> None:
    assert kv_cache.measure({"tokens": 16, "repeat": 0})["difference"] < 1e-4


def test_learned_positions_end_where_others_go_on() -> None:
    learned = position_lengths.measure({"position": "learned", "seed": 0, "steps": 1})["perplexity"]
    alibi = position_lengths.measure({"position": "alibi", "seed": 0, "steps": 1})["perplexity"]
    assert learned[1:] == [None] * 4 and None not in alibi


def test_a_sliding_window_predicts_the_same_tokens_from_as_many() -> None:
    class Successor(torch.nn.Module):
        """Sure of the newest token plus one, once it sees that many tokens."""

        def __init__(self, needs: int) -> None:
            super().__init__()
            self.needs, self.weight = needs, torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids: torch.Tensor) -> SimpleNamespace:
            logits = 50.0 * torch.nn.functional.one_hot((ids + 1) % 8, 8)
            logits[:, : self.needs - 1] = 0
            return SimpleNamespace(logits=logits)

    counting = torch.arange(200)[None].remainder(8)
    assert (
        alibi_protocols.sliding(Successor(32), counting, 32)
        < 1e-6
        < alibi_protocols.sliding(Successor(33), counting, 32)
    )
    early = alibi_protocols.apart(Successor(32), counting[:, :129], 64)  # 31 of 64 tokens see too little
    assert early == pytest.approx(31 / 64 * math.log(8), rel=1e-3)

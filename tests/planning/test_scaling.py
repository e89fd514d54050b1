"""Scaling laws: the published optima, and known coefficients out of made-up runs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anyformer.errors import UserError
from anyformer.lab.claim import Measurements, Verdict
from anyformer.lab.claims import scaling_law
from anyformer.planning.scaling import LAWS, FittedLaw, ScalingLaw, TrainedRun, fit, optimum

NAMES = ("E", "A", "B", "alpha", "beta")


@pytest.mark.parametrize("flops, millions, tokens", [(1e16, 10, 166e6), (1e17, 28, 585e6), (1e18, 81, 2.07e9),
                                                     (1e19, 228, 7.3e9)])  # fmt: skip
def test_w15_optima_of_the_published_fit(flops: float, millions: float, tokens: float) -> None:
    """W15."""
    found = optimum(flops)
    assert round(found.parameters / 1e6) == millions
    assert found.tokens == pytest.approx(tokens, rel=0.005)
    assert 6 * found.parameters * found.tokens == pytest.approx(flops)


@pytest.mark.parametrize("name", ["hoffmann", "besiroglu"])
def test_the_optimum_is_the_least_loss_at_its_price(name: str) -> None:
    law = LAWS[name]
    assert isinstance(law, ScalingLaw)
    best = law.optimum(1e20)
    assert best.loss is not None
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert law.loss(best.parameters * factor, best.tokens / factor) > best.loss
    assert law.better(best.parameters / 4, best.tokens * 4) == "bigger"
    assert law.better(best.parameters * 4, best.tokens / 4) == "longer"


def test_kaplan_grows_models_faster_than_chinchilla() -> None:
    grown = {name: math.log10(optimum(1e22, name).parameters / optimum(1e21, name).parameters) for name in LAWS}
    assert grown["kaplan"] == pytest.approx(0.73)
    assert grown["hoffmann"] == pytest.approx(0.28 / 0.62)
    assert grown["besiroglu"] == pytest.approx(0.3658 / (0.3478 + 0.3658))


def made_up(law: ScalingLaw, noise: float, seed: int = 0) -> list[tuple[float, float, float]]:
    generator = np.random.default_rng(seed)
    return [
        (size, tokens, law.loss(size, tokens) * math.exp(noise * generator.normal()))
        for size in np.geomspace(1e7, 1e10, 7) for tokens in np.geomspace(2e8, 2e11, 7)
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["hoffmann", "besiroglu"])
def test_known_coefficients_are_recovered(name: str) -> None:
    law = LAWS[name]
    assert isinstance(law, ScalingLaw)
    found = fit(made_up(law, noise=0.0), resamples=0).law
    for part in NAMES:
        assert getattr(found, part) == pytest.approx(getattr(law, part), rel=0.02)
    other = LAWS["hoffmann" if name == "besiroglu" else "besiroglu"]
    assert getattr(found, "beta") != pytest.approx(getattr(other, "beta"), rel=0.02)  # noqa: B009  control


def test_error_bars_hold_the_truth_as_often_as_they_say() -> None:
    """The middle 80 % hold it in about 8 of 10 draws: here in 5 of 8 at least, and another law's number never."""
    law, other = LAWS["besiroglu"], LAWS["hoffmann"]
    assert isinstance(law, ScalingLaw) and isinstance(other, ScalingLaw)
    held = {"beta": 0, "other": 0}
    for seed in range(8):
        low, high = fit(made_up(law, 0.005, seed), resamples=30).intervals["beta"]
        held["beta"] += low <= law.beta <= high
        held["other"] += low <= other.beta <= high
    assert held["beta"] >= 5
    assert held["other"] == 0  # control


def test_error_bars_grow_with_noise() -> None:
    law = LAWS["besiroglu"]
    assert isinstance(law, ScalingLaw)
    quiet, loud = (fit(made_up(law, noise), resamples=30) for noise in (0.0005, 0.01))

    def width(found: FittedLaw) -> float:
        low, high = found.intervals["beta"]
        return high - low

    assert width(loud) > 3 * width(quiet)
    best, (least, most) = quiet.optimum(1e20)
    assert least <= best.parameters * 1.05 and most >= best.parameters * 0.95
    assert best.parameters == pytest.approx(law.optimum(1e20).parameters, rel=0.05)


def test_runs_that_determine_nothing_are_refused() -> None:
    law = LAWS["hoffmann"]
    assert isinstance(law, ScalingLaw)
    with pytest.raises(UserError, match="do not determine"):
        fit([TrainedRun(1e7, 1e9, 3.0)] * 3)
    with pytest.raises(UserError, match="fewer than three"):
        fit([(size, 1e9, law.loss(size, 1e9)) for size in np.geomspace(1e6, 1e8, 8)])
    with pytest.raises(UserError, match="failed"):
        fit([*made_up(law, 0.0), (1e7, 1e9, math.nan)])
    with pytest.raises(UserError, match="buys nothing"):
        optimum(-1.0)
    with pytest.raises(UserError, match="hoffmann"):
        optimum(1e18, "hofmann")


def small_runs(law: ScalingLaw, spoiled: float = 0.0) -> Measurements:
    """The cases of the claim with losses of a known law."""
    sizes = {16: 7e3, 32: 27e3, 48: 58e3, 64: 152e3}
    generator = np.random.default_rng(0)
    return Measurements([
        (case, {"parameters": (n := sizes[case["width"]]), "tokens": (t := case["steps"] * scaling_law.TOKENS),
                "loss": law.loss(n, t) * math.exp(spoiled * generator.normal())})
        for case in scaling_law.cases(False)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("alpha", "beta", "spoiled", "verdict"),
    [
        (0.34, 0.34, 0.001, Verdict.HOLDS),
        (0.6, 0.2, 0.0001, Verdict.IN_PART),  # tokens should grow much faster than size
        (0.34, 0.34, 0.2, Verdict.NOT_HERE),  # no law fits
    ],
)
def test_the_claim_on_scaling_can_fail(alpha: float, beta: float, spoiled: float, verdict: Verdict) -> None:
    law = ScalingLaw("one", 1.0, 30.0, 50.0, alpha, beta)
    finding = scaling_law.CLAIM.judge(small_runs(law, spoiled))
    assert finding.verdict is verdict, finding.reason


def test_a_size_of_the_claim_is_really_trained() -> None:
    short, long = (scaling_law.measure({"width": 16, "depth": 2, "steps": steps, "seed": 0, "full": False})
                   for steps in (2, 40))  # fmt: skip
    assert long["tokens"] == 20 * short["tokens"] and long["parameters"] == short["parameters"] < 1e4
    assert long["loss"] < short["loss"] - 0.3


def test_a_law_that_falls_with_neither_has_no_best_size() -> None:
    flat = ScalingLaw("flat", 1.0, 30.0, 50.0, -0.1, 0.3)
    with pytest.raises(UserError, match="no size is the best"):
        flat.optimum(1e18)
    good = LAWS["hoffmann"]
    assert isinstance(good, ScalingLaw) and good.has_optimum
    best, interval = FittedLaw(good, {}, 9, 0.0, [good, flat]).optimum(1e18)
    assert interval == (best.parameters, best.parameters)

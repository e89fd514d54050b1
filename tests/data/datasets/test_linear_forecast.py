"""The linear forecast: scikit-learn's ridge, a penalty and a look-back that suit the series, holes that do no harm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from anyformer.data.datasets.linear_forecast import SHRINKS, best_look_back, fill_missing, fit_linear, latest, ridge
from anyformer.data.datasets.series import RawSeries
from anyformer.embeds.series import fill_missing as fill_missing_in_torch

LENGTH, HORIZON, SPLIT = 48, 12, 900


def sides(values: np.ndarray) -> tuple[RawSeries, RawSeries]:
    """The windows of the first steps, and those of the rest."""
    end = len(values) - HORIZON + 1
    return (RawSeries(values, np.arange(LENGTH, SPLIT - HORIZON + 1), LENGTH, HORIZON),
            RawSeries(values, np.arange(SPLIT, end), LENGTH, HORIZON))  # fmt: skip


def error(values: np.ndarray, said: np.ndarray, test: RawSeries) -> float:
    return float(np.nanmean((said - test.futures(np.arange(len(test)))) ** 2 / np.nanvar(values, axis=0)))


def noisy_season(steps: int = 1_200, channels: int = 2) -> np.ndarray:
    rng, at = np.random.default_rng(0), np.arange(steps)[:, None]
    return np.sin(2 * np.pi * at / 24 + np.arange(channels)) + 0.5 * rng.normal(size=(steps, channels))


def random_walk(steps: int = 1_200) -> np.ndarray:
    return np.cumsum(np.random.default_rng(1).normal(size=(steps, 1)), 0)


def test_the_weights_are_those_of_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(200, 9)), rng.normal(size=(200, 3))
    square, cross = rows.T @ rows, rows.T @ targets
    for shrink, found in zip(SHRINKS, ridge(square, cross, SHRINKS), strict=True):
        theirs = Ridge(alpha=shrink * np.trace(square) / 9, fit_intercept=False).fit(rows, targets).coef_.T
        assert np.abs(found - theirs).max() < 1e-9


def test_a_random_walk_is_left_at_its_last_value_and_a_season_is_learned() -> None:
    for values, shrinks, bound in ((random_walk(), SHRINKS[4:], 1.05), (noisy_season(), SHRINKS[:5], 0.5)):
        train, test = sides(values)
        found = fit_linear(train)
        windows = test.windows(np.arange(len(test)))
        last = np.repeat(windows[:, -1:], HORIZON, 1)
        assert found.shrink in shrinks
        assert error(values, found.forecast(windows), test) < bound * error(values, last, test)


def test_the_units_of_a_channel_change_nothing() -> None:
    values = noisy_season()
    large = values * np.array([1.0, 1_000.0]) + np.array([0.0, 5e4])
    plain, scaled = (fit_linear(sides(each)[0]) for each in (values, large))
    assert plain.shrink == scaled.shrink and np.abs(plain.weights - scaled.weights).max() < 1e-6
    one_decides = fit_linear(sides(values * np.array([1.0, 0.0]))[0])  # control: weights do depend on the channels
    assert np.abs(plain.weights - one_decides.weights).max() > 1e-4


def test_what_is_judged_by_is_not_learned_from() -> None:
    """What comes after the training rows has a say in the penalty, none in the weights."""
    values = noisy_season()
    train, test = sides(values)
    other = values.copy()
    other[SPLIT:] = np.cumsum(np.random.default_rng(2).normal(size=other[SPLIT:].shape), 0)
    walk = RawSeries(other, test.starts, LENGTH, HORIZON)
    plain, judged = fit_linear(train, latest(train, test)), fit_linear(train, latest(walk_after(train, other), walk))
    assert judged.shrink > plain.shrink  # control: the judge was heard
    same = fit_linear(RawSeries(other, train.starts, LENGTH, HORIZON), latest(walk_after(train, other), walk))
    assert np.array_equal(same.weights, judged.weights)


def walk_after(train: RawSeries, values: np.ndarray) -> RawSeries:
    return RawSeries(values, train.starts, train.length, train.horizon)


def test_it_looks_back_far_enough_for_a_season_and_no_further_than_needed() -> None:
    at = np.arange(2_000)[:, None]
    rng = np.random.default_rng(0)
    # A pulse every 60 steps: who sees fewer does not know when the next one comes.
    pulse = (at % 60 == 0) * 5.0 + 0.1 * rng.normal(size=at.shape)
    assert best_look_back(pulse, 12, (12, 24, 48, 96)) == 96
    fading = np.zeros((2_000, 1))
    for step in range(1, 2_000):
        fading[step] = 0.9 * fading[step - 1] + rng.normal(size=1)
    assert best_look_back(fading, 12, (12, 24, 48, 96, 192)) >= 12


def test_missing_steps_are_filled_from_before_and_else_from_after() -> None:
    window = np.array([np.nan, 1, np.nan, np.nan, 4, np.nan])[None, :, None]
    nothing = np.full((1, 3, 1), np.nan)
    assert fill_missing(window)[0, :, 0].tolist() == [1, 1, 1, 1, 4, 4]
    assert fill_missing(nothing).tolist() == [[[0], [0], [0]]]
    for each in (window, nothing):  # the network fills them as the fit does
        assert fill_missing_in_torch(torch.from_numpy(each)).tolist() == fill_missing(each).tolist()


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_holes_cost_little(share: float) -> None:
    whole = noisy_season()
    holed = whole.copy()
    holed[np.random.default_rng(3).random(whole.shape) < share] = np.nan
    train, test = sides(whole)
    full = error(whole, fit_linear(train).forecast(test.windows(np.arange(len(test)))), test)
    train, test = sides(holed)
    found = error(whole, fit_linear(train).forecast(test.windows(np.arange(len(test)))), test)
    assert found < 1.5 * full


def test_few_windows_take_the_usual_penalty() -> None:
    values = noisy_season(80)
    found = fit_linear(RawSeries(values, np.arange(48, 60), LENGTH, HORIZON))
    assert np.isnan(found.error) and np.isfinite(found.weights).all()

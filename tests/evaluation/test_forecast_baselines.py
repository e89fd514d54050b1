"""Baselines of a forecast: the past repeated is right on what repeats, the linear map on what fades."""

from __future__ import annotations

import numpy as np
import pytest

from anyformer.evaluation.answers import Answers
from anyformer.evaluation.baseline_rows import RawRows, RawSeries
from tests.tasks_by_name import baselines

LENGTH, HORIZON, SPLIT = 60, 12, 600


def sides(values: np.ndarray) -> tuple[RawSeries, RawSeries]:
    """The windows of the first steps, and those of the rest."""
    end = len(values) - HORIZON + 1
    return (RawSeries(values, np.arange(LENGTH, SPLIT - HORIZON + 1), LENGTH, HORIZON),
            RawSeries(values, np.arange(SPLIT, end), LENGTH, HORIZON))  # fmt: skip


def judged(values: np.ndarray) -> dict[str, dict[str, object]]:
    train, test = sides(values)
    truth = test.futures(np.arange(len(test))).reshape(-1, values.shape[1])
    truth = truth if values.shape[1] > 1 else truth[:, 0]
    return baselines(Answers("forecast", truth, truth), None, RawRows(series=train), RawRows(series=test))


def day(steps: int = 900) -> np.ndarray:
    """Two channels that repeat every 24 steps, in very different units."""
    hour = np.arange(steps) % 24
    return np.stack([np.sin(hour / 24 * 2 * np.pi), 1000 + 50.0 * (hour > 8)], 1)


def test_a_daily_course_is_repeated_without_error() -> None:
    found = judged(day())
    assert found["strong"]["name"] == "repeating the last 24 steps" and found["strong"]["metrics"]["rmse"] < 1e-9
    assert found["trivial"]["metrics"]["rmse"] > 1.0  # control: the last value alone does not


def test_a_random_walk_is_best_foreseen_by_its_last_value() -> None:
    walk = np.cumsum(np.random.default_rng(0).normal(size=(900, 1)), 0)
    found = judged(walk)
    assert found["trivial"]["name"] == "repeating the last value"
    assert found["strong"]["metrics"]["rmse"] > 0.9 * found["trivial"]["metrics"]["rmse"]  # there is nothing to learn


def test_the_linear_map_learns_what_repeating_cannot() -> None:
    """An autoregression of two steps: a fading wave that repeats at no period of the list."""
    rng, values = np.random.default_rng(0), np.zeros((900, 1))
    for at in range(2, 900):
        values[at] = 1.8 * values[at - 1] - 0.95 * values[at - 2] + rng.normal(size=1)
    found = judged(values)
    assert found["strong"]["metrics"]["rmse"] < 0.7 * found["trivial"]["metrics"]["rmse"]
    assert found["strong"]["name"] == "a linear map of the window"


def test_holes_in_a_series_leave_numbers() -> None:
    values = day()
    values[np.random.default_rng(0).random(values.shape) < 0.05] = np.nan
    for found in judged(values).values():
        assert np.isfinite(list(found["metrics"].values())).all()


def test_windows_and_futures_meet_where_the_future_begins() -> None:
    series = RawSeries(np.arange(10.0)[:, None], np.array([2, 6]), 3, 2)
    windows, futures = series.windows(np.arange(2)), series.futures(np.arange(2))
    assert (
        np.isnan(windows[0, 0, 0]) and windows[0, 1:, 0].tolist() == [0, 1] and windows[1, :, 0].tolist() == [3, 4, 5]
    )
    assert futures[..., 0].tolist() == [[2, 3], [6, 7]]


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_windows_give_a_reason_and_no_crash(rows: int) -> None:
    values = day()
    train = RawSeries(values, np.arange(LENGTH, LENGTH + rows), LENGTH, HORIZON)
    test = RawSeries(values, np.arange(SPLIT, SPLIT + 3), LENGTH, HORIZON)
    truth = test.futures(np.arange(3)).reshape(-1, 2)
    found = baselines(Answers("forecast", truth, truth), None, RawRows(series=train), RawRows(series=test))
    if rows:
        assert all(part["metrics"] for part in found.values())
    else:
        assert found["trivial"]["name"] == "no window to learn from" and not found["trivial"]["metrics"]

"""Forecast baselines: the last value, the last season repeated, and a linear map of the window."""

from __future__ import annotations

import numpy as np

from anyformer.data.datasets.linear_forecast import HELD_OUT, evenly, fill_missing, fit_linear
from anyformer.data.datasets.series import RawSeries

TRIED = 200  # training windows for comparing periods
CHUNK = 1_024  # windows forecast per batch
LAST = "repeating the last value"
PERIODS = (1, 2, 3, 4, 5, 6, 7, 10, 12, 14, 24, 28, 30, 48, 52, 60, 72, 96, 120, 144, 168, 288, 336, 365)


def repeat_period(windows: np.ndarray, horizon: int, period: int) -> np.ndarray:
    """The last `period` steps of each window (B, length, V), repeated to (B, horizon, V)."""
    return windows[:, windows.shape[1] - period + np.arange(horizon) % period]


def usual_period(train: RawSeries) -> tuple[int, float]:
    """The period whose repetition best forecasts the latest training windows, and its squared error in units of the
    channels' variance; 1 repeats the last value."""
    latest = int((1 - HELD_OUT) * len(train))
    chosen = latest + evenly(len(train) - latest, TRIED)
    windows, futures = fill_missing(train.windows(chosen)), train.futures(chosen)
    scale = np.nanstd(train.values[: train.stop], axis=0) + 1e-12

    def error(period: int) -> float:
        off = (repeat_period(windows, train.horizon, period) - futures) / scale
        return float(np.nansum(off**2) / max(1, np.isfinite(off).sum()))

    best = min((period for period in PERIODS if period <= train.length), key=error)
    return best, error(best)


def repeat_last(train: RawSeries, test: RawSeries) -> tuple[str, np.ndarray]:
    """Name of the trivial forecast, and its predictions (N * horizon, V)."""
    return LAST, repeated(test, 1)


def linear_or_seasonal(train: RawSeries, test: RawSeries) -> tuple[str, np.ndarray]:
    """The better of a linear map and the last season repeated, judged on the latest training windows."""
    linear, (period, error) = fit_linear(train), usual_period(train)
    if linear.error > error:
        return LAST if period == 1 else f"repeating the last {period} steps", repeated(test, period)
    parts = [linear.forecast(test.windows(rows)) for rows in chunks(len(test))]
    return "a linear map of the window", np.concatenate(parts).reshape(-1, test.values.shape[1])


def repeated(test: RawSeries, period: int) -> np.ndarray:
    """The last `period` steps of every window repeated, (N * horizon, V)."""
    parts = [repeat_period(fill_missing(test.windows(rows)), test.horizon, period) for rows in chunks(len(test))]
    return np.concatenate(parts).reshape(-1, test.values.shape[1])


def chunks(count: int) -> list[np.ndarray]:
    """All rows, in chunks."""
    return [np.arange(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]

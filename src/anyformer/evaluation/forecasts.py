"""Baselines of a forecast: the past repeated, and one linear map of the window (LTSF-Linear, 2205.13504)."""

from __future__ import annotations

import numpy as np

from anyformer.evaluation.baseline_rows import RawSeries, evenly

MOST_WINDOWS = 4_000  # training windows a baseline learns from
TRIED = 200  # training windows on which periods are compared
CHUNK = 1_024  # windows foreseen at once
PERIODS = (1, 2, 3, 4, 5, 6, 7, 10, 12, 14, 24, 28, 30, 48, 52, 60, 72, 96, 120, 144, 168, 288, 336, 365)
SHRINK = 1e-3  # ridge, as a share of the mean variance of an input


def repeat_period(windows: np.ndarray, horizon: int, period: int) -> np.ndarray:
    """The last `period` steps of each window (B, length, V), over and over: (B, horizon, V)."""
    return windows[:, windows.shape[1] - period + np.arange(horizon) % period]


def usual_period(train: RawSeries) -> int:
    """The period whose repetition foresees the training windows best; 1 repeats the last value."""
    chosen = evenly(len(train), TRIED)
    windows, futures = fill_missing(train.windows(chosen)), train.futures(chosen)
    spread = np.nanstd(futures, axis=(0, 1)) + 1e-12

    def error(period: int) -> float:
        return float(np.nanmean(np.abs(repeat_period(windows, train.horizon, period) - futures) / spread))

    return min((period for period in PERIODS if period <= train.length), key=error)


def repeat_past(train: RawSeries, test: RawSeries) -> tuple[str, np.ndarray]:
    """The trivial forecast in words, and its answers (N * horizon, V)."""
    period = usual_period(train)
    name = "repeating the last value" if period == 1 else f"repeating the last {period} steps"
    parts = [repeat_period(fill_missing(test.windows(rows)), test.horizon, period) for rows in chunks(len(test))]
    return name, np.concatenate(parts).reshape(-1, test.values.shape[1])


def linear_map(train: RawSeries, test: RawSeries) -> tuple[str, np.ndarray]:
    """Every future step as a weighted sum of the window's steps less its last one; all channels share the weights."""
    chosen = evenly(len(train), MOST_WINDOWS)
    futures = train.futures(chosen)
    scale = np.nanstd(futures, axis=(0, 1)) + 1e-12  # (V,) so that channels in large units do not decide alone
    inputs, last = relative(train.windows(chosen))
    wanted = (futures - last) / scale
    rows, targets = by_channel(inputs / scale), by_channel(wanted)  # (N * V, length + 1), (N * V, horizon)
    known = np.isfinite(targets).all(1)
    weights = ridge(with_one(rows[known]), targets[known])
    parts = []
    for at in chunks(len(test)):
        inputs, last = relative(test.windows(at))
        said = with_one(by_channel(inputs / scale)) @ weights  # (B * V, horizon)
        parts.append(said.reshape(len(at), -1, test.horizon).transpose(0, 2, 1) * scale + last)
    sampled = f" on {len(chosen):,} of {len(train):,} windows" if len(chosen) < len(train) else ""
    return f"a linear map of the window{sampled}", np.concatenate(parts).reshape(-1, test.values.shape[1])


def ridge(rows: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Least squares with a little shrinking, in closed form."""
    square = rows.T @ rows
    square[np.diag_indices_from(square)] += SHRINK * np.trace(square) / len(square) + 1e-12
    return np.linalg.solve(square, rows.T @ targets)


def relative(windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Windows (B, length, V) less their last step, and that step (B, 1, V): a level that drifts is then no matter."""
    whole = fill_missing(windows)
    return whole - whole[:, -1:], whole[:, -1:]


def fill_missing(windows: np.ndarray) -> np.ndarray:
    """Missing steps as the last known one before them, else as the first known one after; 0 where there is none."""
    known = np.isfinite(windows)
    steps = np.arange(windows.shape[1])[None, :, None]
    before = np.maximum.accumulate(np.where(known, steps, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, steps, windows.shape[1])[:, ::-1], axis=1)[:, ::-1]
    at = np.where(before >= 0, before, np.minimum(after, windows.shape[1] - 1))
    return np.nan_to_num(np.take_along_axis(windows, at, 1))


def by_channel(windows: np.ndarray) -> np.ndarray:
    """(B, T, V) as a row for each channel of each window: (B * V, T)."""
    return windows.transpose(0, 2, 1).reshape(-1, windows.shape[1])


def with_one(rows: np.ndarray) -> np.ndarray:
    """A column of ones behind the others, for the bias."""
    return np.hstack([rows, np.ones((len(rows), 1))])


def chunks(count: int) -> list[np.ndarray]:
    """All rows, some at a time."""
    return [np.arange(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]

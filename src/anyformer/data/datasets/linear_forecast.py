"""Linear forecasting: the next steps as one linear map of the window, by least squares (NLinear, 2205.13504)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anyformer.data.datasets.series import RawSeries

# Penalties, as fractions of an input's mean variance. The largest leaves only the last value, repeated.
SHRINKS = (1e-3, 1e-2, 0.1, 0.3, 1.0, 10.0, 100.0, 1e4)
USUAL = 0.1  # if there are too few windows to choose
HELD_OUT = 0.2  # fraction of the windows, the latest, used to choose the penalty
MOST_ROWS = 40_000  # windows times channels to fit on
FEWEST = 10  # windows needed on each side for a choice
SAME, SAME_LENGTH = 1.002, 1.01  # factor of the lowest error within which penalties, or look-backs, count as equal
CHUNK = 512  # windows processed at once


@dataclass(frozen=True)
class LinearForecast:
    """Every future step is the last one plus a weighted sum of the differences to the last one; weights are shared by
    channels.

    This makes it invariant to drifting levels and to units.
    """

    weights: np.ndarray  # (length, horizon)
    shrink: float
    error: float  # mean squared, in variances of a channel, on held-out windows; nan if there were too few

    def forecast(self, windows: np.ndarray) -> np.ndarray:
        """Forecast the steps after windows (B, length, V): (B, horizon, V)."""
        past = fill_missing(windows)
        last = past[:, -1:]
        return last + (self.weights.T @ (past - last))


def fit_linear(series: RawSeries, validation: RawSeries | None = None, *, most: int = MOST_ROWS) -> LinearForecast:
    """Fit with the best penalty on the windows of `validation`, by default the latest; the final fit uses all of
    `series`, but the penalty is chosen without windows that overlap those of the validation."""
    rows = evenly(len(series), max(FEWEST, most // series.values.shape[1]))
    validation = latest(series) if validation is None else validation
    scale = np.nanstd(series.values[: series.stop], axis=0) + 1e-12  # a channel in large units must not dominate
    early = rows[series.starts[rows] + series.horizon <= validation.starts[0]]
    square, cross = moments(series, early, scale)
    shrink, error = USUAL, float("nan")
    if min(len(early), len(validation)) >= FEWEST:
        errors = [mean_error(validation, scale, weights) for weights in ridge(square, cross, SHRINKS)]
        # differences this small are noise: take the simplest
        shrink, error = max(pair for pair in zip(SHRINKS, errors, strict=True) if pair[1] <= SAME * min(errors))
    later = moments(series, rows[len(early) :], scale)
    (weights,) = ridge(square + later[0], cross + later[1], [shrink])
    return LinearForecast(weights, shrink, error)


def latest(series: RawSeries, after: RawSeries | None = None) -> RawSeries:
    """The latest windows of a series, and those of another that continues it, since few windows choose badly."""
    starts = series.starts[int((1 - HELD_OUT) * len(series)) :]
    return replace(series, starts=starts if after is None else np.concatenate([starts, after.starts]))


def best_look_back(values: np.ndarray, horizon: int, lengths: Sequence[int]) -> int:
    """The look-back whose linear map forecasts the latest rows of `values` (T, V) best; within one percent, the
    longest."""
    end = len(values) - horizon + 1
    held = np.arange(int((1 - HELD_OUT) * end), end)
    errors = {}
    for length in lengths:
        series = RawSeries(values, np.arange(length, end), length, horizon)
        errors[length] = fit_linear(series, replace(series, starts=held), most=MOST_ROWS // 4).error
    known = {length: error for length, error in errors.items() if np.isfinite(error)}
    return max((each for each in known if known[each] <= SAME_LENGTH * min(known.values())), default=max(lengths))


def moments(series: RawSeries, rows: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Gram matrix of inputs (length, length) and inputs times targets (length, horizon), summed over windows."""
    square = np.zeros((series.length, series.length))
    cross = np.zeros((series.length, series.horizon))
    for at in range(0, len(rows), CHUNK):
        inputs, targets = relative(series, rows[at : at + CHUNK], scale)
        square += inputs.T @ inputs
        cross += inputs.T @ targets
    return square, cross


def relative(series: RawSeries, rows: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (N, length) and targets (N, horizon) minus the last step, one row per channel and window.

    A missing step counts as the one before it; a row with less than half of its future is left out.
    """
    windows, futures = series.windows(rows), series.futures(rows)
    whole = fill_missing(np.concatenate([windows, futures], 1)) / scale
    whole = whole - whole[:, series.length - 1 : series.length]
    known = np.isfinite(windows).any(1) & (np.isfinite(futures).mean(1) >= 0.5)  # (B,V)
    flat = whole.transpose(0, 2, 1)[known]  # (N, length + horizon)
    return flat[:, : series.length], flat[:, series.length :]


def mean_error(series: RawSeries, scale: np.ndarray, weights: np.ndarray) -> float:
    """The mean squared error of a map on the windows of a series, over known steps; on a sample if there are many."""
    rows = evenly(len(series), max(FEWEST, MOST_ROWS // 8 // series.values.shape[1]))
    total, count = 0.0, 0
    for at in range(0, len(rows), CHUNK):
        part = rows[at : at + CHUNK]
        said = LinearForecast(weights, 0.0, 0.0).forecast(series.windows(part))
        off = ((said - series.futures(part)) / scale) ** 2
        total, count = total + float(np.nansum(off)), count + int(np.isfinite(off).sum())
    return total / max(1, count)


def ridge(square: np.ndarray, cross: np.ndarray, shrinks: Sequence[float]) -> list[np.ndarray]:
    """Ridge regression with each penalty, from one eigendecomposition."""
    values, vectors = np.linalg.eigh(square)
    values, turned = np.maximum(values, 0.0), vectors.T @ cross
    mean = values.mean() + 1e-12
    return [vectors @ (turned / (values + shrink * mean)[:, None]) for shrink in shrinks]


def fill_missing(windows: np.ndarray) -> np.ndarray:
    """Impute missing steps of (B, T, V) by the last known one before, else the first known one after; 0 without any."""
    known = np.isfinite(windows)
    if known.all():
        return windows
    steps = np.arange(windows.shape[1])[None, :, None]
    before = np.maximum.accumulate(np.where(known, steps, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, steps, windows.shape[1])[:, ::-1], axis=1)[:, ::-1]
    at = np.where(before >= 0, before, np.minimum(after, windows.shape[1] - 1))
    return np.nan_to_num(np.take_along_axis(windows, at, 1))


def evenly(count: int, most: int) -> np.ndarray:
    """At most `most` of `count` rows, evenly spaced."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).astype(np.int64)

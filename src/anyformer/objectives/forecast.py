"""Forecasting of time series."""

from __future__ import annotations

from anyformer.objectives.regress import Regression


class Forecasting(Regression):
    """How far off each step of each channel is; targets (B, horizon, channels) are scaled by the data, nan is none."""

"""Tasks that data shows by itself: annotated images for detection, rows at equal steps of time for a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anyformer.data.columns.convert import days, numbers
from anyformer.data.columns.look import look
from anyformer.data.datasets.prepare_series import NAMED_TIME
from anyformer.data.decision import TARGET_NAMES
from anyformer.data.files.annotated import find_annotated
from anyformer.data.frame import Frame
from anyformer.data.settings import Data, SeriesSettings

FEWEST = 32  # rows of a series
EQUAL, MOSTLY = 0.15, 0.75  # months differ by so much, and weekends interrupt so many steps of working days


def shows_objects(paths: Sequence[Path] | None, settings: Data) -> str:
    """Why files are annotated images, where they are; no target can be named for those."""
    if paths is None or len(paths) != 1 or settings.target or settings.inputs:
        return ""
    found = find_annotated(paths[0])
    return "" if found is None else found.reason


def shows_series(frame: Frame, settings: Data) -> str:
    """Why a table is a series to forecast, where it is: equal steps of time, numbers beside it, and nothing that the
    target could be predicted from but the time, or settings of a series."""
    split = settings.split
    if settings.inputs or split.group or split.column or len(frame) < FEWEST:
        return ""
    facts = look(frame, settings.kinds())
    times = [name for name in frame.names if facts[name].column.is_time]
    times = times or [name for name in frame.names if name.lower() in NAMED_TIME and facts[name].column.is_number]
    channels = [name for name in frame.names if name not in times]
    if len(times) != 1 or not channels or not all(facts[name].column.is_number for name in channels):
        return ""
    wanted = settings.target or [name for name in channels if name.lower() in TARGET_NAMES]
    reason = reason_to_forecast(set(wanted), channels, settings)
    name, known = times[0], facts[times[0]]
    column = frame.column(name)
    moments = days(column, known.form or None).astype(np.float64) if known.column.is_time else numbers(column)
    return f"{name} goes on in equal steps beside columns of numbers, and {reason}" if reason and even(moments) else ""


def reason_to_forecast(wanted: set[str], channels: list[str], settings: Data) -> str:
    """Why the next steps are asked for rather than what the channels say of a target; "" where they are not."""
    if not wanted:
        return "no target is named"
    if settings.series != SeriesSettings():
        return "a look-back or a horizon is set"
    return "there is nothing else to predict from" if wanted == set(channels) else ""


def even(moments: np.ndarray) -> bool:
    """Whether moments, in whatever order, are all there, all different, and mostly as far apart as each other."""
    if not np.isfinite(moments).all():
        return False
    steps = np.diff(np.sort(moments))
    usual = float(np.median(steps))
    return bool((steps > 0).all()) and float((np.abs(steps - usual) <= EQUAL * usual).mean()) >= MOSTLY

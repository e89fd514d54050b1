"""Detection of tasks from data: annotated images for detection, rows at equal time steps for a forecast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anyformer.data.columns.look import look
from anyformer.data.datasets.panel import FoundPanel, find_panel
from anyformer.data.datasets.time_axis import find_time, is_even, is_row_number, moments_of
from anyformer.data.decision import TARGET_NAMES
from anyformer.data.files.annotated import find_annotated
from anyformer.data.frame import Frame
from anyformer.data.settings import Data, SeriesSettings

FEWEST = 32  # rows needed for a series


def shows_objects(paths: Sequence[Path] | None, settings: Data) -> str:
    """Why files are annotated images, or ""; no target can be named for those."""
    if paths is None or len(paths) != 1 or settings.target or settings.inputs:
        return ""
    found = find_annotated(paths[0])
    return "" if found is None else found.reason


def shows_series(frame: Frame, settings: Data) -> str:
    """Why a table is a series to forecast, or "": equal time steps with numbers, and no other columns to predict the
    target from, or settings of a series."""
    split = settings.split
    if settings.inputs or split.group or split.column or len(frame) < FEWEST:
        return ""
    facts = look(frame, settings.kinds())
    panel = find_panel(frame, facts, settings)
    if panel is not None:
        return panel_reason(panel, frame, settings)
    times = find_time(frame, facts, settings.target or ())
    ids = [name for name in frame.names if is_row_number(name, facts[name])]
    empty = [name for name in frame.names if facts[name].missing == len(frame)]
    channels = [name for name in frame.names if name not in (*times, *ids, *empty)]
    if not times or not channels or not all(facts[name].column.is_number for name in channels):
        return ""
    wanted = settings.target or [name for name in channels if name.lower() in TARGET_NAMES]
    reason = reason_to_forecast(set(wanted), channels, settings)
    if not reason or not is_even(moments_of(frame, times)):
        return ""
    name, go = " and ".join(times), "goes" if len(times) == 1 else "go"
    return f"{name} {go} on in equal steps beside columns of numbers, and {reason}"


def panel_reason(panel: FoundPanel, frame: Frame, settings: Data) -> str:
    """Why a table of several series is to be forecast, if no other column of words is informative."""
    wanted = settings.target or [name for name in panel.measured if name.lower() in TARGET_NAMES]
    if panel.odd or not panel.measured or (settings.target and settings.series == SeriesSettings()):
        return ""
    reason = reason_to_forecast(set(wanted), list(panel.measured), settings)
    return (
        f"{' and '.join(panel.time)} repeat{'s' * (len(panel.time) == 1)} for each of {panel.count:,} "
        f"values of {panel.name}, and {reason}"
        if reason
        else ""
    )


def reason_to_forecast(wanted: set[str], channels: list[str], settings: Data) -> str:
    """Why the next steps are to be forecast rather than a target predicted from the channels; "" if not."""
    if not wanted:
        return "no target is named"
    if settings.series != SeriesSettings():
        return "a look-back or a horizon is set"
    return "there is nothing else to predict from" if wanted == set(channels) else ""

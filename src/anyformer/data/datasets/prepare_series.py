"""From a table to a series: the time column, the channels, and the splits."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.amounts import megabytes
from anyformer.data.columns.convert import numbers
from anyformer.data.columns.look import ID, Facts, look
from anyformer.data.columns.number import Number
from anyformer.data.columns.written import numbers_written
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.datasets.linear_forecast import best_look_back
from anyformer.data.datasets.panel import find_panel, panel_of, spread
from anyformer.data.datasets.series import SeriesExamples
from anyformer.data.datasets.time_axis import (
    NAMED_TIME,
    REPEATED,
    Timeline,
    find_time,
    is_row_number,
    moments_of,
    step_numbers,
)
from anyformer.data.decision import name_of
from anyformer.data.frame import Frame
from anyformer.data.gather import Gathered, gather
from anyformer.data.prepared import DataRequest, Prepared
from anyformer.data.preprocess import FILE, Preprocess, sizes
from anyformer.data.report import log_files
from anyformer.data.settings import Data
from anyformer.data.splits import FREE, SIDES, TEST, TRAIN, VALID
from anyformer.data.store import fingerprint, save_frame
from anyformer.data.targets import Future, read_numbers
from anyformer.errors import UserError, did_you_mean
from anyformer.log import Log, keep_lines

KIND = "series"
HORIZON = 96  # default, if there are enough rows
LOOK_BACKS = (12, 24, 48, 96, 192, 336, 512)  # candidates for the default, as far as the rows allow


def prepare_series(request: DataRequest, *, task: str) -> Prepared:
    """Prepare rows of a table, sorted by time, for forecasting."""
    cache, there = request.cache, request.cache.exists()
    try:
        found = gather(request.source, "table", request.settings, cache / "read")
        return prepare_gathered(found, request, task=task)
    except BaseException:
        if not there:
            shutil.rmtree(cache, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(cache / "read", ignore_errors=True)


def prepare_gathered(gathered: Gathered, request: DataRequest, *, task: str) -> Prepared:
    """The same for rows already read."""
    notes, log = keep_lines(request.log)
    log_files(gathered.frame, log)
    if request.why:
        log(f"task     {task}: {request.why}")
    return assemble_series(gathered, request.settings, task, request.cache, notes, log)


def assemble_series(gathered: Gathered, settings: Data, task: str, cache: Path, notes: list[str], log: Log) -> Prepared:
    frame, rows, used = gathered.frame, len(gathered.frame), 0
    facts = look(frame, settings.kinds())
    found = find_panel(frame, facts, settings)
    panel = None if found is None else panel_of(frame, facts, found)
    if found is None or panel is None:
        time, channels, dropped = choose_columns(frame, facts, settings)
    else:
        log(f"series   {found.count:,} by {found.name}, each with {', '.join(found.measured)}: a channel each; "
             "data.series.by names other columns")  # fmt: skip
        frame, fixed, used, said = spread(frame, panel, found.time, gathered.fixed)
        gathered = replace(gathered, frame=frame, fixed=fixed)
        for line in said:
            log(f"note     {line}")
        time, channels, dropped = found.time, panel.names, list(found.dropped)
        facts = look(frame.of(channels), dict.fromkeys(channels, Number.kind))
    by = f" by {' and '.join(time)}" if time else ""
    log(f"task     {task}: {len(channels)} channel{'s' * (len(channels) > 1)}{by}")
    for name, reason in dropped:
        log(f"left out {name}: {reason}")
    timeline = order_by_time(frame, time, gathered.fixed, log)
    forms = [number_form_of(facts[name]) for name in channels]
    raw = np.stack(read_numbers(frame, channels, forms), 1)
    raw[~np.isfinite(raw)] = np.nan
    raw, order = timeline.put(raw), timeline.order  # (T,V), (T,)
    sides_of_steps = None if gathered.fixed is None else gathered.fixed[order]
    counts = side_counts(sides_of_steps, settings, len(order))
    train = raw[: counts[TRAIN]]
    length, horizon = lengths(settings, counts, train, name_of(frame), log)
    log_channels(channels, raw, train, log)
    columns = tuple(Number.fit(name, train[:, at], settings.columns.replace(scale="standard"), form=forms[at])
                    for at, name in enumerate(channels))  # fmt: skip
    target = Future(names=channels, mean=tuple(c.mean for c in columns), deviation=tuple(c.deviation for c in columns),
                    horizon=horizon, time=time[0] if time else None, clock=time[1:] or None,
                    forms=tuple(forms) if any(forms) else None, panel=panel)  # fmt: skip
    preprocess = Preprocess(task=task, columns=columns, target=target, length=length)
    arrays = Arrays.new(cache)
    arrays.put("values", scale_channels(raw, preprocess))
    arrays.put("order", order)
    ends = np.cumsum(counts)
    spans = [[length, int(ends[TRAIN])], [int(ends[TRAIN]), int(ends[VALID])], [int(ends[VALID]), int(ends[TEST])]]
    sides = {name: max(0, stop - begin - horizon + 1) for name, (begin, stop) in zip(SIDES, spans, strict=True)}
    log(f"split    {', '.join(f'{name} {count:,}' for name, count in zip(SIDES, counts, strict=True) if count)} rows, "
         "the earliest first")  # fmt: skip
    log(f"windows  {length} steps back, {horizon} ahead: "
         + ", ".join(f"{name} {count:,}" for name, count in sides.items() if count))  # fmt: skip
    made: dict[str, Any] = {
        "task": task, "target": list(channels), "rows": rows, "split": sides, "dropped": dict(dropped),
        "used": len(timeline.rows) if panel is None else used, "skipped": dict(frame.skipped),
        "columns": {name: {"kind": "number"} for name in channels},
        "sources": [vars(source) | {"notes": list(source.notes)} for source in frame.sources],
        "sizes": sizes(preprocess), "fingerprint": fingerprint(arrays, preprocess, None),
    }  # fmt: skip
    preprocess.save(arrays.folder / FILE)
    arrays.close({"kind": KIND, "frame": save_frame(frame, arrays.folder), "spans": spans, "facts": made,
                  "notes": notes})  # fmt: skip
    log(f"disk     {megabytes(arrays.bytes)}")
    return opened_series(arrays)


def opened_series(arrays: Arrays) -> Prepared:
    """Prepared data from a sealed folder of a series."""
    preprocess = Preprocess.read(arrays.folder / FILE)
    assert isinstance(preprocess.target, Future) and preprocess.length is not None
    sides = [SeriesExamples(arrays, None, preprocess.target, preprocess.length, begin, stop)
             for begin, stop in arrays.facts["spans"]]  # fmt: skip
    train, valid, test = (side if len(side) else None for side in sides)
    assert train is not None
    facts = arrays.facts
    return Prepared(preprocess.task, train, valid, test, preprocess, facts=facts["facts"], notes=list(facts["notes"]))


def scale_channels(raw: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """Standardise every channel by the mean and standard deviation of its training rows."""
    return np.stack([column.encode(raw[:, at]) for at, column in enumerate(preprocess.columns or ())], 1)


# ---------------------------------------------------------------- decisions


def choose_columns(
    frame: Frame, facts: dict[str, Facts], settings: Data
) -> tuple[tuple[str, ...], tuple[str, ...], list[tuple[str, str]]]:
    """The time columns, the channels, and what is left out."""
    asked = settings.target or settings.inputs or ()
    for option, names in (("--time", [settings.split.time] if settings.split.time else []), ("--target", asked)):
        for name in names:
            if name not in frame.names:
                raise UserError(f"{name_of(frame)} has no column {name!r}", where=option,
                                fix=did_you_mean(name, frame.names))  # fmt: skip
    time = time_of(frame, facts, settings, asked)
    channels, dropped = [], []
    for name in frame.names:
        wanted = name not in time and (not asked or name in asked)
        values = numbers_written(frame.column(name), number_form_of(facts[name])) if wanted else None
        if name in time or name == settings.split.column:
            continue
        if values is None:
            dropped.append((name, "not among the channels asked for"))
        elif facts[name].column.is_time or not np.isfinite(values).any():
            if name in asked:
                raise UserError(f"{name} holds no numbers", where="--target", fix="name columns of numbers")
            dropped.append((name, "holds no numbers"))
        elif is_row_number(name, facts[name]) and name not in asked:
            dropped.append((name, ID))
        elif np.isfinite(values).sum() < 0.5 * (facts[name].rows - facts[name].missing):
            dropped.append((name, "most cells are not numbers"))
        else:
            channels.append(name)
    if not channels:
        raise UserError("no column holds numbers to forecast", where=name_of(frame), fix="give a table of numbers")
    return time, tuple(channels), dropped


def time_of(frame: Frame, facts: dict[str, Facts], settings: Data, asked: Sequence[str]) -> tuple[str, ...]:
    """The time columns: the named one with a clock column beside it, or those detected."""
    named = settings.split.time
    if named is not None:
        found = find_time(frame.of([n for n in frame.names if n == named or not facts[n].column.is_time]), facts, asked)
        return found if found[:1] == (named,) else (named,)
    found = find_time(frame, facts, asked)
    return found or tuple(n for n in frame.names if n not in asked and is_time(frame, n, facts[n]))[:1]


def number_form_of(facts: Facts) -> str:
    """The number format of a column."""
    return facts.form if facts.column.is_number else ""


def is_time(frame: Frame, name: str, facts: Facts) -> bool:
    """Whether a column orders the rows: dates, numbers named like a time, or an evenly spaced first column."""
    if facts.column.is_time:
        return True
    values = numbers(frame.column(name))
    if not len(values) or not np.isfinite(values).all():
        return False
    steps = np.diff(values)
    even = bool(len(steps) and steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-6, atol=0.0))
    return name.lower() in NAMED_TIME or (even and name == frame.names[0] and len(frame.names) > 1)


def order_by_time(frame: Frame, time: Sequence[str], fixed: np.ndarray | None, log: Log) -> Timeline:
    """The rows sorted by time; validation and test files come after, as given."""
    rows = np.arange(len(frame))
    if not time:
        log("note     no column of time: the rows count as they stand")
        return Timeline(rows, rows, len(rows))
    name = " and ".join(time)
    moments = moments_of(frame, time)
    if np.isnan(moments).any():
        row = int(np.flatnonzero(np.isnan(moments))[0])
        raise UserError(f"the time {said_time(frame, time, row)} cannot be read", where=frame.place(row),
                        fix="repair the cell, or remove the row")  # fmt: skip
    side = np.zeros(len(frame), np.int8) if fixed is None else np.where(fixed == FREE, TRAIN, fixed)
    order = np.lexsort((moments, side))
    same = (np.diff(moments[order]) == 0) & (np.diff(side[order]) == 0)
    if same.sum() > REPEATED * len(order):
        row = int(order[int(np.flatnonzero(same)[0]) + 1])
        what = f"the time {said_time(frame, time, row)} comes twice, as {int(same.sum()):,} do"
        raise UserError(
            what,
            where=frame.place(row),
            fix="give one series a file, a column for each, or the column that names them: --set data.series.by=COLUMN",
        )
    if (order != rows).any():
        log(f"note     the rows were not in the order of {name}, and are now")
    steps = np.concatenate([[0], np.cumsum(~same)])
    if same.any():
        row = int(order[int(np.flatnonzero(same)[0]) + 1])
        which = "row has" if same.sum() == 1 else "rows have"
        log(f"note     {int(same.sum()):,} {which} the {name} of another, first {frame.place(row)}: one step with "
             "the mean of its rows")  # fmt: skip
    different = moments[order][np.concatenate([[True], ~same])]
    places = step_numbers(different) if len(np.unique(side)) == 1 else None
    if places is not None and places[-1] + 1 > len(places):
        missing = int(places[-1]) + 1 - len(places)
        log(f"note     {missing:,} of {int(places[-1]) + 1:,} steps of {name} have no row: their values are missing")
        return Timeline(order, places[steps], int(places[-1]) + 1)
    apart = np.diff(different if places is None else places)  # months are equal steps of unequal days
    usual = float(np.median(apart)) if len(apart) else 0.0
    odd = int((np.abs(apart - usual) > 1e-6 * max(1.0, abs(usual))).sum())
    if odd:
        log(f"note     {odd:,} steps of {name} are longer or shorter than the others")
    return Timeline(order, steps, int(steps[-1]) + 1)


def said_time(frame: Frame, time: Sequence[str], row: int) -> str:
    """The time of a row as in its cells."""
    cells = frame.cells(row)
    return repr(" ".join(str(cells[name]) for name in time)[:40])


def side_counts(fixed: np.ndarray | None, settings: Data, rows: int) -> list[int]:
    """Numbers of training, validation and test rows, which follow each other."""
    if fixed is not None:
        side = np.where(fixed == FREE, TRAIN, fixed)
        found = [int((side == number).sum()) for number in range(len(SIDES))]
        if not found[VALID] and settings.split.valid:
            found[VALID] = int(settings.split.valid * found[TRAIN])
            found[TRAIN] -= found[VALID]
        return found
    valid, test = int(settings.split.valid * rows), int(settings.split.test * rows)
    return [rows - valid - test, valid, test]


def lengths(settings: Data, counts: list[int], train: np.ndarray, where: str, log: Log) -> tuple[int, int]:
    """Look-back and horizon in steps; defaults are reduced to fit."""
    held = min((count for count in counts[1:] if count), default=counts[TRAIN])
    horizon = settings.series.horizon or max(1, min(HORIZON, held // 2, counts[TRAIN] // 8))
    length = settings.series.look_back or choose_look_back(train, horizon, log)
    needed = length + horizon
    if counts[TRAIN] < needed:
        what = f"{counts[TRAIN]:,} rows to train on are fewer than {length} back and {horizon} ahead"
        raise UserError(what, where=where,
                        fix="lower data.series.look_back or data.series.horizon")  # fmt: skip
    for name, count in zip(SIDES[1:], counts[1:], strict=True):
        if 0 < count < horizon:
            raise UserError(f"{count:,} rows to {name} are fewer than the {horizon} ahead", where=where,
                            fix="lower data.series.horizon, or hold out more")  # fmt: skip
    return length, horizon


def choose_look_back(train: np.ndarray, horizon: int, log: Log) -> int:
    """The default look-back: the best one of a linear map of the window."""
    most = max(2, len(train) // 4)
    tried = [length for length in LOOK_BACKS if length <= most]
    if len(tried) < 2:
        return min(most, LOOK_BACKS[1])
    found = best_look_back(train, horizon, tried)
    log(f"look back {found} steps: of {', '.join(map(str, tried))} the longest that foresees the end of the training "
         "rows best by a linear map; data.series.look_back sets it")  # fmt: skip
    return found


def log_channels(channels: tuple[str, ...], raw: np.ndarray, train: np.ndarray, log: Log) -> None:
    for at, name in enumerate(channels[:20]):
        known = train[:, at][np.isfinite(train[:, at])]
        lost = int(np.isnan(raw[:, at]).sum())
        spread = (
            f"mean {known.mean():.6g}, deviation {known.std():.6g} in training" if len(known) else "no training value"
        )
        flat = "; never changes" if len(known) and known.min() == known.max() else ""
        log(f"channel  {name}: {spread}{flat}{f', {lost:,} missing' if lost else ''}")
    if len(channels) > 20:
        log(f"channel  and {len(channels) - 20} more")

"""Panel data: several series in one table, one row per time step of each; detected and pivoted to one column per
series.

A table of shops, months and sales becomes one of months with columns `sales Berlin`, `sales Lima`, ...; if a shop has
no row its value is missing. Then it is treated like any other series of several channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from anyformer.data.columns.cells import factorize, some
from anyformer.data.columns.look import NAMED_GROUP, NAMED_ID, Facts
from anyformer.data.columns.written import numbers_written
from anyformer.data.datasets.time_axis import (
    NAMED_TIME,
    PARTS,
    REPEATED,
    find_time,
    is_even,
    is_row_number,
    moments_of,
)
from anyformer.data.decision import name_of
from anyformer.data.frame import Frame
from anyformer.data.panel import Panel
from anyformer.data.settings import Data
from anyformer.data.targets import Future
from anyformer.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SERIES = 1000  # channels allowed unless panel columns are requested
COVERED = 0.5  # fraction of all time steps of all series that have a row, unless panel columns are requested


@dataclass(frozen=True)
class FoundPanel:
    """The columns of a panel: its time, the series names, the measured values, and the rest."""

    time: tuple[str, ...]
    by: tuple[str, ...]
    measured: tuple[str, ...]
    dropped: tuple[tuple[str, str], ...]
    odd: tuple[str, ...]  # dropped columns of words that may carry information of their own
    count: int

    @property
    def name(self) -> str:
        return " and ".join(self.by)


def find_panel(frame: Frame, facts: Mapping[str, Facts], settings: Data) -> FoundPanel | None:
    """The panel in a table where time steps repeat for each series; None if it has one series or none."""
    asked = settings.series.by
    for name in asked or ():
        if name not in frame.names:
            raise UserError(f"{name_of(frame)} has no column {name!r}", where="data.series.by",
                            fix=did_you_mean(name, frame.names))  # fmt: skip
    taken = (*(settings.target or ()), *(asked or ()))
    time = (settings.split.time,) if settings.split.time else find_time(frame, facts, taken)
    if asked is not None and not time:
        raise UserError("no column says the time of the rows", where="data.series.by", fix="name one with --time")
    # A --time that is no column is reported by the split, which says which columns there are.
    if not time or not set(time) <= set(frame.names) or len(frame) < 4:
        return None
    moments = moments_of(frame, time)
    if not np.isfinite(moments).all() or (asked is None and is_even(moments)):
        return None
    known, steps = np.unique(moments, return_inverse=True)
    if asked is not None:
        by: tuple[str, ...] | None = asked
    elif 2 * len(known) > len(frame) or not is_even(known):
        return None
    else:
        by = find_names(frame, facts, [name for name in frame.names if name not in (*time, *taken)], steps)
    return None if by is None else measure(frame, facts, settings, time, by, steps)


def find_names(
    frame: Frame, facts: Mapping[str, Facts], names: Sequence[str], steps: np.ndarray
) -> tuple[str, ...] | None:
    """The first column, or pair of columns, of which each value has about one row per time step."""
    codes = {name: factorize(frame.column(name))[0] for name in names if may_name(name, facts[name])}
    codes = {name: found for name, found in codes.items() if (found >= 0).all()}
    for by in (*((name,) for name in codes), *combinations(codes, 2)):
        together = np.unique(np.stack([codes[name] for name in by]), axis=1, return_inverse=True)[1].reshape(-1)
        count, moments = int(together.max()) + 1, int(steps.max()) + 1
        rows = len(np.unique(together * moments + steps))
        if 2 <= count <= MOST_SERIES and rows >= COVERED * count * moments and len(steps) - rows <= REPEATED * rows:
            return by
    return None


def may_name(name: str, facts: Facts) -> bool:
    """Whether a column may name series: words, or integers with a typical name."""
    if facts.unique == "many" or not 2 <= int(facts.unique) <= MOST_SERIES:
        return False
    called = NAMED_ID.search(name.strip()) or NAMED_GROUP.search(name.strip())
    return bool(called) if facts.column.is_number else not facts.column.is_time


def measure(
    frame: Frame, facts: Mapping[str, Facts], settings: Data, time: tuple[str, ...], by: tuple[str, ...],
    steps: np.ndarray,
) -> FoundPanel:  # fmt: skip
    """The measured columns of a panel, and why its other columns are left out."""
    wanted = settings.target or settings.inputs or ()
    series, words = codes_of(frame, by)
    measured, dropped, odd = [], list[tuple[str, str]](), []
    for name in frame.names:
        if name in (*time, *by, settings.split.column):
            continue
        if wanted and name not in wanted:
            dropped.append((name, "not among the channels asked for"))
        elif not facts[name].column.is_number:
            if name in wanted:
                raise UserError(f"{name} holds no numbers", where="--target", fix="name columns of numbers")
            dropped.append((name, "holds no numbers"))
            codes, _ = factorize(frame.column(name))
            if facts[name].missing < len(frame) and not (depends(codes, series) or depends(codes, steps)):
                odd.append(name)
        elif name not in wanted and is_row_number(name, facts[name]):
            dropped.append((name, facts[name].dropped or "numbers the rows"))
        elif (
            name not in wanted
            and name.lower() in (*NAMED_TIME, *PARTS)
            and depends(factorize(frame.column(name))[0], steps)
        ):
            dropped.append((name, f"says the time, as {' and '.join(time)} does"))
        elif name not in wanted and depends(factorize(frame.column(name))[0], series):
            dropped.append((name, f"one value for each {' and '.join(by)}"))
        else:
            measured.append(name)
    return FoundPanel(time, by, tuple(measured), tuple(dropped), tuple(odd), len(words))


def depends(values: np.ndarray, keys: np.ndarray) -> bool:
    """Whether values are constant for each key."""
    return len(np.unique(keys * (values.max() + 2) + values)) == len(np.unique(keys))


def codes_of(frame: Frame, by: Sequence[str]) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """The series index of each row, and the series in order of first occurrence; -1 for a row without a name."""
    found = [factorize(frame.column(name)) for name in by]
    named = np.stack([codes for codes, _ in found])
    lost = (named < 0).any(0)
    keys, first, codes = np.unique(named[:, ~lost], axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    whole = np.full(len(frame), -1, np.int64)
    whole[~lost] = place[codes.reshape(-1)]
    words = [tuple(found[at][1][code] for at, code in enumerate(keys[:, one])) for one in order]
    return whole, words


# ---------------------------------------------------------------- from long to wide


def panel_of(frame: Frame, facts: Mapping[str, Facts], found: FoundPanel) -> Panel:
    """The part of a panel that is saved for new rows."""
    if not found.measured:
        raise UserError("no column holds numbers to forecast", where=name_of(frame), fix="give a table of numbers")
    _, series = codes_of(frame, found.by)
    forms = tuple(facts[name].form if facts[name].column.is_number else "" for name in found.measured)
    return Panel(by=found.by, measured=found.measured, series=tuple(series), forms=forms if any(forms) else None)


def spread(
    frame: Frame, panel: Panel, time: Sequence[str], fixed: np.ndarray | None = None
) -> tuple[Frame, np.ndarray | None, int, list[str]]:
    """Pivot to one row per time step and a column per measure and series; also the splits of these rows, how many rows
    of the frame were used, and notes.

    Several rows of a series at the same time step are averaged; rows of unknown series or without a name are left out.
    """
    import pyarrow as pa

    codes, words = codes_of(frame, panel.by)
    known = {series: at for at, series in enumerate(panel.series)}
    place = np.array([known.get(series, -1) for series in words] + [-1])[codes]
    moments = moments_of(frame, time) if time else np.arange(len(frame), dtype=np.float64)
    if np.isnan(moments).any():
        row = int(np.flatnonzero(np.isnan(moments))[0])
        raise UserError(f"the time {frame.cells(row)[time[0]]!r} cannot be read", where=frame.place(row),
                        fix="repair the cell, or remove the row")  # fmt: skip
    side = np.zeros(len(frame), np.int64) if fixed is None else fixed.astype(np.int64)
    rows = np.flatnonzero(place >= 0)
    notes = left_out(words, codes, place, panel)
    if not len(rows):
        raise UserError(f"no row is of a series that the model was trained on, such as {said(panel.series[0])!r}",
                        where=name_of(frame), fix="give rows of those series")  # fmt: skip
    _, first, steps = np.unique(np.stack([side[rows], moments[rows]]), axis=1, return_index=True, return_inverse=True)
    steps = steps.reshape(-1)
    table = {name: frame.column(name).take(pa.array(rows[first])) for name in time}
    repeated = len(rows) - len(np.unique(steps * len(panel.series) + place[rows]))
    if repeated:
        notes.append(f"{some(repeated, 'row')} with the {' and '.join(time)} of another of the same "
                     f"{' and '.join(panel.by)}: one step with their mean")  # fmt: skip
    for name, form in zip(panel.measured, panel.forms or [""] * len(panel.measured), strict=True):
        values = numbers_written(frame.column(name), form)[rows]
        wide = means(values, steps, place[rows], (len(first), len(panel.series)))
        table |= {column: pa.chunked_array([pa.array(wide[:, at], from_pandas=True)])
                  for at, column in enumerate(panel.columns_of(name))}  # fmt: skip
    numbers = rows[first] if frame.numbers is None else frame.numbers[rows[first]]
    made = replace(frame, table=pa.table(table), numbers=numbers)
    return made, None if fixed is None else fixed[rows[first]], len(rows), notes


def means(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Values at their positions, averaged if several share one; nan if there is none."""
    good = np.isfinite(values)
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, (rows[good], columns[good]), values[good])
    np.add.at(count, (rows[good], columns[good]), 1)
    return np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)


def left_out(words: Sequence[tuple[str, ...]], codes: np.ndarray, place: np.ndarray, panel: Panel) -> list[str]:
    """Notes on rows that belong to no known series."""
    by, notes = " and ".join(panel.by), []
    nameless = int((codes < 0).sum())
    if nameless:
        notes.append(f"{some(nameless, 'row')} without {by} left out")
    new = [series for series in words if series not in set(panel.series)]
    if new:
        count = int((place < 0).sum()) - nameless
        notes.append(f"{some(count, 'row')} of {len(new):,} {by} not trained on left out, first {said(new[0])!r}")
    return notes


def said(series: tuple[str, ...]) -> str:
    return ", ".join(series)


def spread_new(frame: Frame, target: Future) -> tuple[Frame, list[str]]:
    """New rows in the model's layout: panels are pivoted, a table with a column per series is unchanged."""
    panel = target.panel
    if panel is None or not set(panel.by) & set(frame.names):
        return frame, []
    needed = (*panel.by, *panel.measured)
    lost = [name for name in needed if name not in frame.names]
    if lost:
        raise UserError(f"the column {lost[0]!r} is missing, which the model was trained on", where=name_of(frame),
                        fix=did_you_mean(lost[0], frame.names))  # fmt: skip
    time = [name for name in target.time_columns if name in frame.names]
    whole, _, _, notes = spread(frame, panel, time if len(time) == len(target.time_columns) else ())
    extra = [name for name in frame.names if name not in (*needed, *time)]
    if extra:
        notes.append(f"ignored {', '.join(extra[:6])}: not among the columns trained on")
    return whole, notes


def gather_again(steps: pa.Table, panel: Panel) -> pa.Table:
    """A table with a column per series unpivoted to rows per series, like the panel's own file."""
    import pyarrow as pa

    time = [name for name in steps.column_names if name not in panel.names]
    parts = []
    for at, words in enumerate(panel.series):
        part = {name: steps.column(name) for name in time}
        part |= {name: pa.array([word] * len(steps)) for name, word in zip(panel.by, words, strict=True)}
        part |= {name: steps.column(panel.columns_of(name)[at]) for name in panel.measured}
        parts.append(pa.table(part))
    return pa.concat_tables(parts)

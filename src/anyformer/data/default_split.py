"""The default split of rows: by groups, by time, or at random, with notes on it."""

from __future__ import annotations

import numpy as np

from anyformer.data.columns.cells import factorize
from anyformer.data.columns.convert import days
from anyformer.data.columns.look import NAMED_GROUP, NAMED_ID
from anyformer.data.datasets.time_axis import MOSTLY, is_even
from anyformer.data.decision import Decision, Input
from anyformer.data.frame import Frame
from anyformer.data.gather import Gathered
from anyformer.data.settings import Data

FEWEST = 32  # rows needed for a split by time
COMES_AGAIN = 0.9  # distinct values per row, up to which a column identifies groups


def settle_split(settings: Data, gathered: Gathered, decision: Decision) -> tuple[Data, list[str]]:
    """The settings with the split that suits the rows, unless one was requested, and notes on it."""
    split, frame = settings.split, gathered.frame
    if gathered.fixed is not None or split.column or split.group or split.time or not (split.valid or split.test):
        return settings, []
    group = decision.task.default_group(frame, decision)
    if group is not None:
        return settings.replace(split=split.replace(group=group)), []
    dates = [column for column in decision.inputs if column.column.is_time]
    if gathered.origin == "table" and decision.task.splits_by_time and not split.shuffle and len(frame) >= FEWEST:
        found = next((column for column in dates if runs_regularly(frame, column)), None)
        if found is not None and not new_classes(frame, decision, found, split.valid + split.test):
            why = (f"{found.name} goes on in regular steps: the latest rows validate and test, since neighbours in "
                   "time are alike; data.split.shuffle=true draws rows at random")  # fmt: skip
            return settings.replace(split=split.replace(time=found.name)), [why, *several_series(frame, found)]
    return settings, list(notes_on_random(frame, decision, dates, shuffle=split.shuffle))


def runs_regularly(frame: Frame, column: Input) -> bool:
    """Whether dates have equal steps, each once or, with several series, mostly equally often."""
    moments = days(frame.column(column.name), column.facts.form or None)
    if np.isnat(moments).any():
        return False
    seconds, counts = np.unique(moments.astype(np.int64).astype(np.float64), return_counts=True)
    often = float(np.median(counts))
    return is_even(seconds) and (is_even(moments.astype(np.int64).astype(np.float64)) or
                                 (often > 1 and float((counts == often).mean()) >= MOSTLY))  # fmt: skip


def several_series(frame: Frame, column: Input) -> list[str]:
    """A note if each date repeats for several series."""
    moments = days(frame.column(column.name), column.facts.form or None)
    often = round(len(moments) / max(1, len(np.unique(moments))))
    if often < 2:
        return []
    return [f"{column.name} comes {often:,} times each, as of several series in one file: they are read row by row; "
            "--task forecast foresees each of them by its own past"]  # fmt: skip


def new_classes(frame: Frame, decision: Decision, column: Input, share: float) -> bool:
    """Whether the latest rows contain a class that the others lack: then only a random split can be learned."""
    classes = decision.task.strata(frame, decision)
    if classes is None:
        return False
    order = np.argsort(days(frame.column(column.name), column.facts.form or None), kind="stable")
    kept = len(order) - int(np.ceil(share * len(order)))
    return not set(classes[order[kept:]].tolist()) <= set(classes[order[:kept]].tolist())


def notes_on_random(frame: Frame, decision: Decision, dates: list[Input], *, shuffle: bool) -> list[str]:
    """What a random split may leak: successive rows, and rows of the same person or thing."""
    notes = []
    if dates and not shuffle and decision.task.splits_by_time:
        name = dates[0].name
        notes.append(f"rows carry dates and are split at random; data.split.time={name} (--time) tests on the latest")
    for name in frame.names:
        if name in decision.target or not (NAMED_ID.search(name.strip()) or NAMED_GROUP.search(name.strip())):
            continue
        codes, words = factorize(frame.column(name))
        known = int((codes >= 0).sum())
        if 2 < len(words) <= COMES_AGAIN * known and known > FEWEST:
            notes.append(f"{len(words):,} different {name} in {known:,} rows: those of one {name} may train and test; "
                         f"data.split.group={name} (--group) keeps them on one side")  # fmt: skip
            break
    return notes

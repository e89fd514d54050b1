"""Log lines on what was found and decided: a word for the subject, then the facts."""

from __future__ import annotations

import numpy as np

from anyformer.data.columns.cells import some
from anyformer.data.counts import ColumnCounts
from anyformer.data.decision import Decision
from anyformer.data.frame import Frame
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Split
from anyformer.data.splits import SIDES, Sides
from anyformer.log import Log


def log_files(frame: Frame, log: Log) -> None:
    """Log every file with its rows and how it was read."""
    for source in frame.sources[:20]:
        how = f" ({', '.join(source.notes)})" if source.notes else ""
        rows = some(source.rows, source.unit) if source.rows else "the other side of each line"
        log(f"file     {source.name}: {rows}{how}")
    if len(frame.sources) > 20:
        log(f"file     and {len(frame.sources) - 20:,} more")
    for remark in frame.remarks:
        log(f"note     {remark}")


def log_target(preprocess: Preprocess, decision: Decision, trained: int, log: Log) -> None:
    """Log the target, with notes on it."""
    target = preprocess.target
    assert target is not None
    names = target.names
    name = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    log(f"target   {name}: {target.describe(trained)}")
    for line in target.warnings():
        log(f"note     {line}")


def log_split(sides: Sides, preprocess: Preprocess, settings: Split, log: Log) -> None:
    """Log the rows of each split, how they were chosen, and the number of duplicates."""
    counts = [int((sides.side == number).sum()) for number in range(len(SIDES))]
    total = max(1, sum(counts))
    how = "drawn at random"
    if settings.column:
        how = f"as column {settings.column} says" + (", valid drawn from the rest" if sides.draws_valid else "")
    elif sides.by_file:
        how = sides.by_file
    elif settings.group:
        how = f"whole groups of {settings.group}"
    elif settings.time:
        how = f"by time, the latest {settings.time} last"
    elif sides.stratified:
        how = "drawn at random, each class in its share"
    each = ", ".join(
        f"{name} {count:,} ({count / total:.0%})" for name, count in zip(SIDES, counts, strict=True) if count
    )
    log(f"split    {each}; {how}")
    if sides.duplicates:
        plural = "s have" if sides.duplicates > 1 else " has"
        log(f"split    {sides.duplicates:,} row{plural} the same inputs as an earlier one; equal rows stay on one side")
    for note in sides.notes:
        log(f"note     {note}")


def log_counts(counts: ColumnCounts, preprocess: Preprocess, unseen: list[str], log: Log) -> None:
    """Log what was truncated, missing and unknown."""
    if counts.cut:
        share = counts.cut / max(1, counts.rows)
        log(f"cut      {share:.1%} of rows cut at {preprocess.length} tokens ({counts.cut:,})")
    for remark in counts.remarks:
        log(f"note     {remark}")
    if counts.missing:
        said = ", ".join(f"{name} {count:,}" for name, count in list(counts.missing.items())[:10])
        log(f"missing  cells without a value are a value of their own: {said}")
    for name, count in counts.odd.items():
        log(f"missing  {name}: {some(count, 'cell')} among them cannot be read, first {counts.odd_first[name]}")
    for name, count in counts.unknown.items():
        first = counts.unknown_first[name]
        log(f"unknown  {name}: {some(count, 'cell')} with a value training does not have, first {first}")
    if unseen:
        shown = ", ".join(repr(label[:40]) for label in unseen[:6]) + (" ..." if len(unseen) > 6 else "")
        log(f"note     held-out rows have labels that no training row has, and are left out: {shown}")


def log_wrong(rows: int, labels: list[str], log: Log) -> None:
    """Log test rows whose label is unknown to training."""
    shown = ", ".join(repr(label[:40]) for label in labels[:6]) + (" ..." if len(labels) > 6 else "")
    said = f"{rows:,} test rows have labels" if rows > 1 else "1 test row has a label"
    log(f"note     {said} that no training row has, and every answer there counts as wrong: {shown}")


def log_rows(total: int, used: int, skipped: dict[str, int], places: dict[str, str], log: Log) -> None:
    """Log used and skipped rows, which add up to the total."""
    left = sum(skipped.values())
    log(f"rows     {total:,} = {used:,} used + {left:,} skipped" if left else f"rows     {total:,}, all used")
    for reason, count in skipped.items():
        first = f", first {places[reason]}" if reason in places else ""
        log(f"skipped  {count:,}: {reason}{first}")
    assert used + left == total, np.array([used, left, total])

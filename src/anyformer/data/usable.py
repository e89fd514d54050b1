"""Which rows can be used at all, and by which reason the others cannot."""

from __future__ import annotations

import numpy as np

from anyformer.data.columns.base import empty
from anyformer.data.decision import Decision
from anyformer.data.frame import Frame
from anyformer.errors import UserError

EMPTY, NO_TEXT = "every input is missing", "the text is empty"


def usable(frame: Frame, decision: Decision, *, bad: str) -> tuple[np.ndarray, dict[str, int], dict[str, str]]:
    """The rows that can be used, how many cannot by reason, and the first of each; `bad` "error" refuses it."""
    kept = np.ones(len(frame), bool)
    skipped: dict[str, int] = {}
    places: dict[str, str] = {}
    for reason, mask in problems(frame, decision):
        found = mask & kept
        if not found.any():
            continue
        if bad == "error":
            raise refused(frame, int(np.flatnonzero(found)[0]), reason)
        skipped[reason] = int(found.sum())
        places[reason] = frame.place(int(np.flatnonzero(found)[0]))
        kept &= ~mask
    if not kept.any():
        worst = max(skipped, key=lambda reason: skipped[reason])
        raise UserError(
            f"no row can be used: {worst} in {skipped[worst]:,} of {len(frame):,} rows", where=frame.place(0),
            fix="repair the file, or name another --target",
        )  # fmt: skip
    return np.flatnonzero(kept), skipped, places


def refused(frame: Frame, row: int, reason: str) -> UserError:
    """The error for a row that cannot be used."""
    return UserError(reason, where=frame.place(row), fix="repair the row, or leave such rows out with data.bad=skip")


def problems(frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
    """Reasons not to use a row, each with a mask over the rows."""
    found = decision.task.target_problems(frame, decision)
    names = [column.name for column in decision.inputs]
    texts = all(column.column.is_text for column in decision.inputs)
    lost = np.ones(len(frame), bool)
    for name in names:
        lost &= empty(frame, name)
        if not lost.any():
            break
    return [*found, (NO_TEXT if texts else EMPTY, lost)]

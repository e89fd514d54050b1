"""Calls: rows of several askers answered by one function together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyformer.engine.jobs import Call

log = logging.getLogger("anyformer")
BATCH = 32  # rows answered at once


@dataclass(eq=False)
class Asked:
    """A call that has been accepted, and the answers so far."""

    call: Call
    answers: list[Any] = field(default_factory=list)
    over: bool = False


@dataclass(eq=False)
class Piece:
    """Rows of one call that are answered at once; a long call is several pieces, so that others come in between."""

    asked: Asked
    rows: list[Any]


def pieces(call: Call) -> list[Piece]:
    """A call cut into pieces."""
    asked = Asked(call)
    return [Piece(asked, call.rows[at : at + BATCH]) for at in range(0, len(call.rows), BATCH)]


def answer(batch: Sequence[Piece], over: Callable[[Asked, Sequence[Any] | Exception], None]) -> None:
    """Answer some pieces with the same function together; after an error each by itself, to find whose it is."""
    what = batch[0].asked.call.what
    try:
        found = answers(what, [row for piece in batch for row in piece.rows])
    except Exception as error:
        if len(batch) > 1:
            log.warning(
                "an answer to %d calls failed (%s) and is repeated one by one", len(batch), type(error).__name__
            )
            for piece in batch:
                answer([piece], over)
        else:
            log.warning("a call failed: %s", error, exc_info=error)
            over(batch[0].asked, error.with_traceback(None))
        return
    at = 0
    for piece in batch:
        asked = piece.asked
        asked.answers += found[at : at + len(piece.rows)]
        at += len(piece.rows)
        if len(asked.answers) == len(asked.call.rows):
            over(asked, asked.answers)


def answers(what: Callable[[list[Any]], Sequence[Any]], rows: list[Any]) -> list[Any]:
    """One answer a row."""
    found = list(what(rows))
    if len(found) != len(rows):
        raise RuntimeError(f"{len(found)} answers to {len(rows)} rows")
    return found

"""Batched calls (labels, embeddings): rows of several callers are processed by one function in one batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("anyformer")
BATCH = 32  # rows per batch

Answers = Sequence[Any] | Exception


@dataclass(eq=False)
class BatchCall:
    """Rows for a batched function; rows of other calls may share the batch."""

    function: Callable[[list[Any]], Sequence[Any]]
    rows: list[Any]
    on_answer: Callable[[Answers], None]
    deadline: float | None = None
    client: str = ""
    created: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    answers: list[Any] = field(default_factory=list)  # so far
    finished: bool = False

    def is_expired(self, now: float) -> bool:
        """Whether it is cancelled or past its deadline."""
        return self.cancelled or (self.deadline is not None and now >= self.deadline)


@dataclass(eq=False)
class CallPiece:
    """Part of a call that is processed at once; a long call has several pieces, so that others can interleave."""

    call: BatchCall
    rows: list[Any]


class CallCancelled(Exception):
    """The result of a cancelled call."""


def split_call(call: BatchCall) -> list[CallPiece]:
    """Split a call into pieces."""
    return [CallPiece(call, call.rows[at : at + BATCH]) for at in range(0, len(call.rows), BATCH)]


def fits_batch(piece: CallPiece, batch: list[CallPiece]) -> bool:
    """Whether a piece can join the batch."""
    if piece.call.finished or len(piece.rows) + sum(len(other.rows) for other in batch) > BATCH:
        return False
    return not batch or piece.call.function == batch[0].call.function


def answer_batch(batch: Sequence[CallPiece], on_end: Callable[[BatchCall, Answers], None]) -> None:
    """Process pieces by one call of their function; after an error each by itself, to isolate the cause."""
    try:
        found = call_function(batch[0].call.function, [row for piece in batch for row in piece.rows])
    except Exception as error:
        if len(batch) > 1:
            log.warning("a batch of %d calls failed (%s) and is repeated one by one", len(batch), type(error).__name__)
            for piece in batch:
                answer_batch([piece], on_end)
        else:
            log.warning("a call failed: %s", error, exc_info=error)
            on_end(batch[0].call, error.with_traceback(None))
        return
    at = 0
    for piece in batch:
        call = piece.call
        call.answers += found[at : at + len(piece.rows)]
        at += len(piece.rows)
        if len(call.answers) == len(call.rows):
            on_end(call, call.answers)


def call_function(function: Callable[[list[Any]], Sequence[Any]], rows: list[Any]) -> list[Any]:
    """Call a function and check that it returns one answer per row."""
    found = list(function(rows))
    if len(found) != len(rows):
        raise RuntimeError(f"{len(found)} answers to {len(rows)} rows")
    return found

"""Jobs that have a row, or had one and will have one again: how they come by it, lose it, and end."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from anyformer.engine.counts import Counts
from anyformer.engine.jobs import Ended, Event, Failed
from anyformer.engine.writing import Echo, Writing
from anyformer.errors import UserError
from anyformer.generation.batch_sampler import Choosing
from anyformer.generation.cache.base import Rows
from anyformer.generation.prompts import decoder_of, vocabulary_of
from anyformer.generation.runners.eager import device_of

log = logging.getLogger("anyformer")


class RowHolders:
    """Takes rows for jobs and gives them back.

    `end` is the only way out, whatever the reason, and gives the row back before anything else. A fault in one row's
    own work ends that job. A fault in a joint pass leaves all its rows in doubt: each is read anew from its tokens and
    takes its next step alone, where a guilty one is found out and the others lose nothing but time.

    A text whose reader is behind is held: it costs the others nothing, and its row is free for them where the store can
    go on from it later.
    """

    def __init__(self, rows: Rows, counts: Counts, over: Callable[[Writing, Event], None]) -> None:
        self.rows, self.counts, self.over = rows, counts, over
        self.device = device_of(rows.model)
        self.choosing = Choosing(vocabulary_of(decoder_of(rows.model.spec).embed, "the model"), self.device)
        self.reading: deque[Writing] = deque()
        self.decoding: list[Writing] = []
        self.held: list[Writing] = []  # their readers are behind
        self.tokens: Tensor | None = None  # (N,) what `decoding` writes next, where that is on the device already

    @property
    def active(self) -> int:
        """Jobs that have a row."""
        return len(self.reading) + len(self.decoding)

    def sweep(self, now: float) -> None:
        """End what was cancelled or has run out of time."""
        for writing in [*self.reading, *self.decoding, *self.held]:
            job = writing.job
            if job.cancelled:
                self.end(writing, Ended("cancelled"))
            elif job.deadline is not None and now >= job.deadline:
                self.end(writing, Ended("deadline"))
        for writing in [writing for writing in self.decoding if writing.job.held]:
            self.hold(writing)
        for writing in [writing for writing in self.held if writing.row is not None and not writing.job.held]:
            self.held.remove(writing)
            self.write_on(writing)

    # ---------------------------------------------------------------- taking and giving back

    def take(self, writing: Writing) -> bool:
        """A row for a job that has waited; False where that failed, which ends the job."""
        self.counts.queued.add(time.monotonic() - writing.job.made)
        writing.job.phase = "prefill"
        try:
            seed = writing.settings.seed
            assert isinstance(seed, int)
            self.choosing.add(writing.key, writing.settings, writing.tokens, seed, writing.guide)
            self.open(writing)
        except Exception as error:
            self.fail(writing, error)
            return False
        return True

    def open(self, writing: Writing) -> None:
        """A row that knows none of the tokens, or the first few from an earlier one."""
        job = writing.job
        # The log-probabilities of a prompt come from reading it: such a job shares its scope with nobody.
        scope = job.scope if writing.echo is None else f"{job.scope}\0{writing.key}"
        writing.row, writing.read = self.rows.open(writing.tokens, source=job.source, scope=scope)
        self.counts.reused_tokens += writing.read

    def number(self, writing: Writing) -> int:
        assert writing.row is not None
        return writing.row

    def say(self, writing: Writing, event: Event) -> None:
        """Tell an event; whoever cannot be told wants no more."""
        if writing.job.phase == "over":  # told the end by another thread, because this one hung
            return
        try:
            writing.job.tell(event)
        except Exception:
            log.warning("a job could not be told what came and is cancelled", exc_info=True)
            writing.job.cancelled = True

    # ---------------------------------------------------------------- readers that are behind

    def hold(self, writing: Writing) -> None:
        """Write no more of a text for now."""
        self.decoding.remove(writing)
        self.tokens = None
        self.held.append(writing)
        if self.rows.resumes:
            row, writing.row = self.number(writing), None
            self.rows.close(row)

    def write_on(self, writing: Writing) -> None:
        """A text that kept its row, and whose reader has caught up."""
        writing.last = time.monotonic()
        self.decoding.append(writing)
        self.tokens = None

    def returning(self) -> Writing | None:
        """A text without a row whose reader has caught up; it is read from where its row ended, or anew."""
        for writing in self.held:
            if not writing.job.held and writing.row is None and self.rows.free:
                self.held.remove(writing)
                writing.last = time.monotonic()
                try:
                    self.open(writing)
                    return writing
                except Exception as error:
                    self.fail(writing, error)
                    return self.returning()
        return None

    # ---------------------------------------------------------------- faults and ends

    def doubt(self, group: list[Writing], error: Exception) -> None:
        """A step or a reading failed. One row alone is guilty; of several, each must show that it is not."""
        group = [writing for writing in group if writing.row is not None]  # an end may have come before the fault
        if len(group) == 1:
            return self.fail(group[0], error)
        log.warning("a pass of %d rows failed (%s) and is repeated row by row", len(group), type(error).__name__)
        self.tokens = None
        for writing in group:  # all of them first: no row is to go on from another that is in doubt
            self.forget(writing)
            row, writing.row = self.number(writing), None
            self.rows.close(row, keep=False)
        for writing in group:
            writing.alone, writing.job.phase = True, "prefill"
            if writing.echo is not None and not writing.job.new:
                writing.echo = Echo(writing.echo.count)
            try:
                self.open(writing)
            except Exception as again:
                self.fail(writing, again)
            else:
                self.reading.append(writing)

    def fail(self, writing: Writing, error: Exception) -> None:
        """End a job by an error of its own; one that took the device with it is everybody's, and is raised."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        log.warning("a job failed: %s", error, exc_info=None if isinstance(error, UserError) else error)
        # What the frames of a traceback hold, large tensors among it, would live as long as the event.
        self.end(writing, Failed(error.with_traceback(None)))

    def end(self, writing: Writing, event: Ended | Failed) -> None:
        """The one way out: the row is free before anybody hears of it."""
        self.forget(writing)
        self.release(writing, keep=isinstance(event, Ended) and writing.echo is None)
        self.over(writing, event)

    def forget(self, writing: Writing) -> None:
        """Take a job out of the line it stands in."""
        if writing in self.decoding:
            self.tokens = None
        for line in (self.decoding, self.reading, self.held):
            if writing in line:
                line.remove(writing)

    def release(self, writing: Writing, *, keep: bool) -> None:
        """Give back what a job holds."""
        if writing.key in self.choosing.writers:
            self.choosing.remove(writing.key)
        if writing.row is not None:
            row, writing.row = writing.row, None
            self.rows.close(row, keep=keep)

    def leave(self) -> None:
        """Give back all rows; whoever is concerned is told elsewhere."""
        for writing in [*self.reading, *self.decoding, *self.held]:
            self.release(writing, keep=False)
        for line in (self.reading, self.decoding, self.held):
            line.clear()
        self.tokens = None

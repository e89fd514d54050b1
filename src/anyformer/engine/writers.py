"""Jobs that have a row: prompts being read, texts being written. All of it happens on the engine's one thread."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from anyformer import faults
from anyformer.engine.counts import Counts
from anyformer.engine.jobs import Ended, Event, Failed, NewToken, PromptRead
from anyformer.engine.writing import Writing
from anyformer.errors import UserError
from anyformer.generation.choosing import Choosing
from anyformer.generation.prompts import decoder_of, vocabulary_of
from anyformer.generation.rows.base import Rows
from anyformer.generation.running import device_of

log = logging.getLogger("anyformer")
CALM = 256  # steps without a fault after which twice as many rows may step together


class Writers:
    """Takes rows for jobs, reads their prompts in pieces, steps them together, and gives the rows back.

    `end` is the only way out, whatever the reason, and gives the row back before anything else. A fault in one row's
    own work ends that job. A fault in a joint step leaves all its rows in doubt: each is read anew from its tokens and
    takes its next step alone, where a guilty one is found out and the others lose nothing but time.
    """

    def __init__(self, rows: Rows, counts: Counts, chunk: int, over: Callable[[Writing, Event], None]) -> None:
        self.rows, self.counts, self.chunk, self.over = rows, counts, chunk, over
        self.device = device_of(rows.model)
        self.choosing = Choosing(vocabulary_of(decoder_of(rows.model.spec).embed, "the model"), self.device)
        self.reading: deque[Writing] = deque()
        self.decoding: list[Writing] = []
        self.tokens: Tensor | None = None  # (N,) what `decoding` writes next, where that is on the device already
        self.short_next = False
        self.together, self.calm = rows.capacity, 0

    @property
    def active(self) -> int:
        """Jobs that have a row."""
        return len(self.reading) + len(self.decoding)

    def sweep(self, now: float) -> None:
        """End what was cancelled or has run out of time."""
        for writing in [*self.reading, *self.decoding]:
            job = writing.job
            if job.cancelled:
                self.end(writing, Ended("cancelled"))
            elif job.deadline is not None and now >= job.deadline:
                self.end(writing, Ended("deadline"))

    # ---------------------------------------------------------------- reading

    def read(self, waiting: Callable[[int | None], Writing | None]) -> int:
        """Read prompts for one chunk's worth of tokens, taking on jobs while rows are free; how many were read.

        `waiting` gives the next job, or the next whose prompt has at most so many tokens.
        """
        left, read = self.chunk, 0
        while left > 0:
            writing = self.next(waiting)
            if writing is None:
                break
            rest = len(writing.tokens) - writing.read
            if left < self.chunk // 4 and rest > left:  # a sliver of a long prompt costs nearly as much as a chunk
                self.reading.appendleft(writing)
                break
            tokens = self.piece(writing, left)
            read += tokens
            left -= max(tokens, self.chunk // 8)  # a pass has its price, however short the prompt
        return read

    def next(self, waiting: Callable[[int | None], Writing | None]) -> Writing | None:
        """Long prompts are read one after the other, with a short one in between: neither kind blocks the other."""
        self.short_next = not self.short_next
        if self.reading and not self.short_next:
            return self.reading.popleft()
        while self.rows.free and (writing := waiting(self.chunk if self.reading else None)) is not None:
            if self.take(writing):
                return writing
        return self.reading.popleft() if self.reading else None

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

    def piece(self, writing: Writing, most: int) -> int:
        """Read on in one prompt; where its end is reached, choose the first token. The tokens that this took."""
        source = writing.source if writing.read == 0 else 0  # read when the row was opened
        start, stop = writing.read, min(len(writing.tokens), writing.read + max(1, most - source))
        try:
            faults.point("prompt")
            assert writing.row is not None
            hidden = self.rows.read(writing.row, writing.tokens[start:stop])  # (T,D)
            writing.read = stop
            if writing.echo is not None and not writing.job.new:
                writing.echo.add(self.rows, hidden, writing.tokens[start + 1 : stop + 1])
            if stop < len(writing.tokens):
                self.reading.appendleft(writing)
            else:
                self.begin(writing, self.rows.scores(hidden[-1:]))
        except Exception as error:
            self.fail(writing, error)
        return source + stop - start

    def begin(self, writing: Writing, scores: Tensor) -> None:
        """The prompt has been read: from its scores (1,V) comes the first token, or the next after a fault."""
        job = writing.job
        if not job.new:
            self.counts.prompt_tokens += writing.prompt
            self.say(writing, PromptRead() if writing.echo is None else writing.echo.event())
        chosen = self.choosing.choose([writing.key], scores)
        job.phase = "decode"
        self.decoding.append(writing)
        self.tokens = None
        self.write(writing, chosen.told[0], time.monotonic())

    # ---------------------------------------------------------------- writing

    def step(self) -> int:
        """One more token for every text; how many came."""
        if not self.decoding:
            return 0
        before = self.counts.new_tokens
        self.calm += 1
        if self.calm == CALM:
            self.together, self.calm = min(2 * self.together, self.rows.capacity), 0
        if len(self.decoding) <= self.together and not any(writing.alone for writing in self.decoding):
            self.joint(self.decoding, self.tokens)
        else:
            doubtful = [writing for writing in self.decoding if writing.alone]
            others = [writing for writing in self.decoding if not writing.alone]
            groups = [others[at : at + self.together] for at in range(0, len(others), self.together)]
            for group in [*groups, *([writing] for writing in doubtful)]:
                self.joint(group, None)
        return self.counts.new_tokens - before

    def joint(self, group: list[Writing], tokens: Tensor | None) -> None:
        """One step of some rows together; `tokens` (N,) are the newest of each, where they are on the device."""
        group = list(group)
        keys = [writing.key for writing in group]
        if tokens is None:
            tokens = torch.tensor([writing.tokens[-1] for writing in group], device=self.device)
        try:
            faults.point("together")
            scores = self.rows.step([self.number(writing) for writing in group], tokens)  # (N,V)
            chosen = self.choosing.choose(keys, scores)
            told = chosen.told
        except Exception as error:
            self.doubt(group, error)
            return
        self.tokens = chosen.tokens if len(group) == len(self.decoding) else None
        now = time.monotonic()
        for writing, new in zip(group, told, strict=True):
            writing.read += 1
            writing.alone = False
            self.write(writing, new, now)

    def number(self, writing: Writing) -> int:
        assert writing.row is not None
        return writing.row

    def write(self, writing: Writing, new: NewToken, now: float) -> None:
        """One more token of one text, and its end where this was the last."""
        job, counts = writing.job, self.counts
        if writing.guide is not None and writing.guide.error is not None:
            return self.fail(writing, writing.guide.error)
        if new.logprob != new.logprob:
            return self.fail(writing, ArithmeticError("the model's scores are not numbers"))
        writing.tokens.append(new.token)
        if job.new:
            counts.between_tokens.add(now - writing.last)
        else:
            counts.first_token.add(now - job.made)
        writing.last = now
        job.new += 1
        counts.new_tokens += 1
        self.say(writing, new)
        try:
            reason = writing.finish(new.token)
        except Exception as error:  # of the way tokens are read, or of a guide
            return self.fail(writing, error)
        if reason is not None:
            self.end(writing, Ended(reason))

    def say(self, writing: Writing, event: Event) -> None:
        """Tell an event; whoever cannot be told wants no more."""
        if writing.job.phase == "over":  # told the end by another thread, because this one hung
            return
        try:
            writing.job.tell(event)
        except Exception:
            log.warning("a job could not be told what came and is cancelled", exc_info=True)
            writing.job.cancelled = True

    # ---------------------------------------------------------------- faults and ends

    def doubt(self, group: list[Writing], error: Exception) -> None:
        """A step failed. One row alone is guilty; of several, each must show that it is not."""
        if len(group) == 1:
            return self.fail(group[0], error)
        log.warning("a step of %d rows failed (%s) and is repeated row by row", len(group), type(error).__name__)
        self.together, self.calm, self.tokens = max(1, len(group) // 2), 0, None
        for writing in group:  # all of them first: no row is to go on from another that is in doubt
            self.decoding.remove(writing)
            row, writing.row = self.number(writing), None
            self.rows.close(row, keep=False)
        for writing in group:
            writing.alone, writing.job.phase = True, "prefill"
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
        if writing in self.decoding:
            self.decoding.remove(writing)
            self.tokens = None
        elif writing in self.reading:
            self.reading.remove(writing)
        self.release(writing, keep=isinstance(event, Ended) and writing.echo is None)
        self.over(writing, event)

    def release(self, writing: Writing, *, keep: bool) -> None:
        """Give back what a job holds."""
        if writing.key in self.choosing.writers:
            self.choosing.remove(writing.key)
        if writing.row is not None:
            row, writing.row = writing.row, None
            self.rows.close(row, keep=keep)

    def leave(self) -> None:
        """Give back all rows; whoever is concerned is told elsewhere."""
        for writing in [*self.reading, *self.decoding]:
            self.release(writing, keep=False)
        self.reading.clear()
        self.decoding.clear()
        self.tokens = None

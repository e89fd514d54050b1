"""Prompts being read and texts being written, many in one pass. All of it happens on the engine's one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from anyformer import faults
from anyformer.engine.counts import Counts
from anyformer.engine.jobs import Ended, Event, NewToken, PromptRead
from anyformer.engine.row_holders import RowHolders
from anyformer.engine.writing import Writing
from anyformer.generation.cache.base import Rows

CALM = 256  # steps without a fault after which twice as many rows may step together


class Writers(RowHolders):
    """Reads the prompts of jobs in pieces, several prompts side by side, and steps their texts together."""

    def __init__(self, rows: Rows, counts: Counts, chunk: int, over: Callable[[Writing, Event], None]) -> None:
        super().__init__(rows, counts, over)
        self.chunk = chunk
        self.short_next = False
        self.together, self.calm = rows.capacity, 0

    # ---------------------------------------------------------------- reading

    def read(self, waiting: Callable[[int | None], Writing | None]) -> int:
        """Read prompts for one chunk's worth of tokens, taking on jobs while rows are free; how many were read.

        `waiting` gives the next job, or the next whose prompt has at most so many tokens.
        """
        left, read = self.chunk, 0
        while left > 0 and (group := self.gather(waiting, left)):
            sources = sum(writing.source for writing in group if not writing.read)  # read when the rows were opened
            sizes = [size_of(writing, left) for writing in group]
            self.pieces(group, sizes)
            read += sum(sizes) + sources
            # As wide as the longest piece; and a pass has its price, however short the prompts.
            left -= max(len(group) * max(sizes) + sources, self.chunk // 8)
        return read

    def gather(self, waiting: Callable[[int | None], Writing | None], left: int) -> list[Writing]:
        """Prompts to read in one pass that costs at most so many tokens: the next, and others that fit beside it."""
        group: list[Writing] = []
        width = 0
        while (writing := self.next(waiting)) is not None:
            rest, size = len(writing.tokens) - writing.read, size_of(writing, left)
            by_itself = writing.alone or not self.rows.side_by_side
            if group:
                fits = not by_itself and size == rest and (len(group) + 1) * max(width, size) <= left
            else:
                # A sliver of a long prompt costs nearly as much as a chunk.
                fits = left >= self.chunk // 4 or size == rest
            if not fits:
                self.reading.appendleft(writing)
                break
            group.append(writing)
            width = max(width, size)
            if by_itself or (len(group) + 1) * width > left:
                break
        return group

    def next(self, waiting: Callable[[int | None], Writing | None]) -> Writing | None:
        """Long prompts are read one after the other, with a short one in between: neither kind blocks the other."""
        if (writing := self.returning()) is not None:
            return writing
        self.short_next = not self.short_next
        if self.reading and not self.short_next:
            return self.reading.popleft()
        while self.rows.free and (writing := waiting(self.chunk if self.reading else None)) is not None:
            if self.take(writing):
                return writing
        return self.reading.popleft() if self.reading else None

    def pieces(self, group: list[Writing], sizes: list[int]) -> None:
        """Read on in some prompts; where the end of one is reached, its first token is chosen."""
        try:
            faults.point("prompt")
            found = self.rows.read({
                self.number(writing): writing.tokens[writing.read : writing.read + size]
                for writing, size in zip(group, sizes, strict=True)
            })  # (T,D) each  # fmt: skip
            read: list[Writing] = []
            last: list[Tensor] = []
            for writing, size, hidden in zip(group, sizes, found, strict=True):
                start, writing.read = writing.read, writing.read + size
                if writing.echo is not None and not writing.job.new:
                    writing.echo.add(self.rows, hidden, writing.tokens[start + 1 : writing.read + 1])
                if writing.read < len(writing.tokens):
                    self.reading.appendleft(writing)
                else:
                    read.append(writing)
                    last.append(hidden[-1])
            if read:
                self.begin(read, self.rows.scores(torch.stack(last)))
        except Exception as error:
            self.doubt(group, error)

    def begin(self, group: list[Writing], scores: Tensor) -> None:
        """Prompts have been read: from their scores (N,V) come first tokens, or the next after a fault or a pause."""
        told = self.choosing.choose([writing.key for writing in group], scores).told
        now = time.monotonic()
        self.tokens = None
        for writing, new in zip(group, told, strict=True):
            job = writing.job
            if not job.new:
                self.counts.prompt_tokens += writing.prompt
                self.say(writing, PromptRead() if writing.echo is None else writing.echo.event())
            job.phase = "decode"
            self.decoding.append(writing)
            self.write(writing, new, now)

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

    def doubt(self, group: list[Writing], error: Exception) -> None:
        """After a failed step fewer rows step together: it may be for want of memory."""
        if len(group) > 1 and group[0] in self.decoding:
            self.together, self.calm = max(1, len(group) // 2), 0
        super().doubt(group, error)


def size_of(writing: Writing, left: int) -> int:
    """Tokens of a prompt to read next, where a pass may cost so many; what an encoder read counts too."""
    source = 0 if writing.read else writing.source
    return min(len(writing.tokens) - writing.read, max(1, left - source))

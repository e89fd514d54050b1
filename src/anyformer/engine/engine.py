"""The engine: one thread that owns a model and writes many texts at once, taking on and letting go at every step.

Other threads hand over jobs and calls, cancel them, and are told on the engine's thread what comes of them. A turn of
the loop sweeps out what was cancelled or is late, reads at most one chunk of prompts, lets every text grow by a token,
and answers one batch of calls; so nothing waits for more than a turn.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from anyformer import faults
from anyformer.engine.calls import BATCH, Asked, Piece, answer, pieces
from anyformer.engine.counts import Counts, Rate
from anyformer.engine.jobs import (
    Busy,
    Call,
    Cancelled,
    Closed,
    Ended,
    Event,
    Failed,
    Guide,
    Job,
    NewToken,
)
from anyformer.engine.queue import Waiting
from anyformer.engine.writers import Writers
from anyformer.engine.writing import Writing, accepted
from anyformer.errors import UserError
from anyformer.generation.cache.base import Rows
from anyformer.generation.config import Generation
from anyformer.generation.runners.eager import at_rest
from anyformer.generation.stops import TextOf

log = logging.getLogger("anyformer")
IDLE = 0.005  # seconds between two looks at work that cannot move
SWEEP = 0.05  # seconds between two looks at what waits
PATIENCE = 10.0  # seconds `stop` waits for a turn to end
LONGEST = 600.0  # seconds anybody is told to wait


class Engine:
    """Continuous batching over rows of a model; without rows it only answers calls. Any thread may use it.

    `queue_tokens` bounds the prompts that wait together with what they may write, `queue_rows` the jobs and the rows
    of calls; `chunk` is how many tokens of prompts are read between two steps. What `counts` says is consistent while
    `lock` is held.
    """

    def __init__(self, rows: Rows | None, *, text_of: TextOf | None = None, queue_tokens: int = 65_536,
                 chunk: int = 256, queue_rows: int = 4_096) -> None:  # fmt: skip
        self.rows, self.text_of = rows, text_of
        self.counts = Counts()
        self.lock = threading.Condition()
        self.jobs: Waiting[Writing] = Waiting(queue_tokens, queue_rows)
        self.calls: Waiting[Piece] = Waiting(queue_rows, queue_rows)
        self.working: dict[Job | Call, Writing | Asked] = {}  # accepted and not over
        self.writers = None if rows is None else Writers(rows, self.counts, chunk, self.job_over)
        self.broken: BaseException | None = None
        self.closing = self.stopping = self.touched = False
        self.keys = itertools.count()
        self.swept = self.moved = time.monotonic()
        self.thread: threading.Thread | None = None

    # ---------------------------------------------------------------- for any thread

    def start(self) -> None:
        """Begin to work."""
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="anyformer-engine", daemon=True)
            self.thread.start()

    def submit(self, job: Job) -> None:
        """Hand over a job; UserError for what is wrong with it, Busy where the queue is full, Closed at the end."""
        writing = accepted(job, next(self.keys), self.rows, self.text_of)
        self.admit(job, writing, self.jobs, [(writing, writing.cost)], self.counts.rate)

    def call(self, call: Call) -> None:
        """Hand over a call; one without rows is answered at once."""
        cut = pieces(call)
        if not cut:
            call.tell([])
            return
        parts = [(piece, len(piece.rows)) for piece in cut]
        self.admit(call, cut[0].asked, self.calls, parts, self.counts.call_rate)

    def cancel(self, work: Job | Call) -> None:
        """Ask for nothing more; before the next step its row is free and it is told."""
        work.cancelled = True
        with self.lock:
            self.touched = True
            self.lock.notify_all()

    def resume(self, jobs: Sequence[Job]) -> None:
        """Their readers, who were behind (`Job.held`), have caught up; they are written on with the next step."""
        for job in jobs:
            job.held = False
        with self.lock:
            self.lock.notify_all()

    def drain(self, seconds: float) -> bool:
        """Take no more work and wait until all is over; whether it is."""
        with self.lock:
            self.closing = True
            return self.lock.wait_for(lambda: not self.working, seconds)

    def stop(self) -> None:
        """End at once; what is left is told Failed(Closed)."""
        with self.lock:
            self.closing = self.stopping = True
            self.lock.notify_all()
        if self.thread is None:
            self.end_all()
        elif self.thread is not threading.current_thread():
            self.thread.join(PATIENCE)
            if self.thread.is_alive():  # it hangs inside the model; those who wait need not
                log.error("the engine did not come back within %.0f s", PATIENCE)
                self.tell_all()

    @property
    def stuck_for(self) -> float:
        """Seconds without progress while there is work; 0 when idle, endless once broken."""
        if self.broken is not None:
            return math.inf
        return time.monotonic() - self.moved if self.working else 0.0

    def check_room(self, client: str, tokens: int) -> None:
        """Busy or Closed where a job of so many tokens, prompt and text, would not be taken on; cheap to ask first."""
        with self.lock:
            self.check(client, tokens, self.jobs, self.counts.rate)

    def check(self, client: str, cost: int, line: Waiting[Any], rate: Rate) -> None:
        """Raises what work of this cost would be told now; under the lock."""
        if self.closing or self.broken is not None:
            raise Closed("the engine takes no more work")
        excess = line.excess(client, cost)
        if excess:
            self.counts.refused += 1
            raise Busy(min(LONGEST, max(1.0, excess / rate.per_second)) if rate.per_second else 1.0)

    def admit(
        self, work: Job | Call, held: Writing | Asked, line: Waiting[Any], parts: list[tuple[Any, int]], rate: Rate
    ) -> None:
        """Put work in line, or say why not."""
        with self.lock:
            if work in self.working:
                raise UserError("this work was handed over before", fix="make a new Job or Call for each")
            self.check(work.client, sum(cost for _, cost in parts), line, rate)
            for part, cost in parts:
                line.put(work.client, part, cost)
            if not self.working:
                self.moved = time.monotonic()
            self.working[work] = held
            self.counts.accepted += 1
            self.measure()
            self.lock.notify_all()

    # ---------------------------------------------------------------- the engine's own thread

    def run(self) -> None:
        """The loop; however it ends, everybody who waits is told."""
        try:
            with torch.no_grad(), contextlib.nullcontext() if self.rows is None else at_rest(self.rows.model):
                while not self.stopping:
                    with self.lock:
                        while not self.working and not self.stopping:
                            self.lock.wait()
                    if not self.stopping and not self.turn():
                        with self.lock:
                            self.lock.wait(SWEEP if self.all_held else IDLE)  # work that cannot move now
        except BaseException as error:
            self.broken = error
            log.exception("the engine has broken")
        finally:
            self.closing = True
            self.end_all()

    def turn(self) -> bool:
        """Sweep, read a chunk, write a token, answer a batch; whether there was anything to do."""
        faults.point("turn")
        begun = time.monotonic()
        self.sweep(begun)
        tokens = rows = 0
        if self.writers is not None:
            tokens = self.writers.read(self.next_job) + self.writers.step()
            if tokens:
                self.counts.rate.add(tokens, time.monotonic() - begun)
        if self.calls.length:
            before = time.monotonic()
            rows = self.answer_calls()
            self.counts.call_rate.add(rows, time.monotonic() - before)
        with self.lock:
            self.measure()
        if tokens or rows or self.all_held:
            self.moved = time.monotonic()
        return bool(tokens or rows)

    @property
    def all_held(self) -> bool:
        """Whether all that is left waits for those who read it: that is nobody's fault here."""
        return self.writers is not None and len(self.writers.held) == len(self.working) > 0

    def sweep(self, now: float) -> None:
        """End what was cancelled or has run out of time, wherever it is."""
        if self.writers is not None:
            self.writers.sweep(now)
        if not self.touched and now < self.swept + SWEEP:
            return
        with self.lock:
            self.touched, self.swept = False, now
            jobs = self.jobs.remove(lambda writing: is_late(writing.job, now))
            cut = self.calls.remove(lambda piece: piece.asked.over or is_late(piece.asked.call, now))
            self.measure()
        for writing in jobs:
            self.job_over(writing, Ended("cancelled" if writing.job.cancelled else "deadline"))
        for piece in cut:
            call = piece.asked.call
            self.call_over(piece.asked, Cancelled("cancelled") if call.cancelled else TimeoutError("too late"))

    def next_job(self, most: int | None) -> Writing | None:
        """The job whose turn it is to get a row, among those with at most so many tokens to read."""
        with self.lock:
            found = self.jobs.take(None if most is None else lambda writing: writing.cost - writing.most <= most)
            self.measure()
            return found

    def answer_calls(self) -> int:
        """Answer calls of one kind, as many rows as are answered at once; how many."""
        batch: list[Piece] = []
        with self.lock:
            while (piece := self.calls.take(lambda piece: joins(piece, batch))) is not None:
                batch.append(piece)
            self.measure()
        if batch:
            answer(batch, self.call_over)
        count = sum(len(piece.rows) for piece in batch)
        self.counts.answered_rows += count
        return count

    # ---------------------------------------------------------------- ends

    def job_over(self, writing: Writing, event: Event) -> None:
        """The last thing a job is told."""
        if self.forget(writing.job, event.reason if isinstance(event, Ended) else "failed"):
            writing.job.phase = "over"
            say(writing.job.tell, event)

    def call_over(self, asked: Asked, found: Sequence[Any] | Exception) -> None:
        """What a call is told."""
        asked.over = self.touched = True  # what is left of it in the queue is swept out
        call = asked.call
        how = (
            "cancelled" if isinstance(found, Cancelled) else "deadline" if isinstance(found, TimeoutError) else "failed"
        )
        if self.forget(call, how if isinstance(found, Exception) else "done"):
            say(call.tell, found)

    def forget(self, work: Job | Call, how: str) -> bool:
        """Count how something ended; False where it had ended before."""
        with self.lock:
            if self.working.pop(work, None) is None:
                return False
            name = how if how in ("cancelled", "deadline", "failed") else "done"
            setattr(self.counts, name, getattr(self.counts, name) + 1)
            self.moved = time.monotonic()
            self.measure()
            self.lock.notify_all()
            return True

    def end_all(self) -> None:
        """Give back all rows, then tell everybody that there will be nothing more."""
        try:
            if self.writers is not None:
                self.writers.leave()
        finally:
            self.tell_all()

    def tell_all(self) -> None:
        """Tell everybody that there will be nothing more."""
        why = "the engine was stopped" if self.broken is None else "the engine has broken"
        with self.lock:
            self.jobs.remove(lambda writing: True)
            self.calls.remove(lambda piece: True)
            left = list(self.working.values())
        for held in left:
            if isinstance(held, Writing):
                self.job_over(held, Failed(Closed(why)))
            else:
                self.call_over(held, Closed(why))

    def measure(self) -> None:
        """Bring the counts of what waits and works up to date; under the lock."""
        counts = self.counts
        counts.in_flight, counts.queue_rows = len(self.working), self.calls.cost
        counts.queue_length, counts.queue_tokens = self.jobs.length, self.jobs.cost
        if self.writers is not None:
            counts.active_rows, counts.held_texts = self.writers.active, len(self.writers.held)


def is_late(work: Job | Call, now: float) -> bool:
    """Whether nobody waits for it any more."""
    return work.cancelled or (work.deadline is not None and now >= work.deadline)


def joins(piece: Piece, batch: list[Piece]) -> bool:
    """Whether rows can be answered together with those chosen so far."""
    if piece.asked.over or len(piece.rows) + sum(len(other.rows) for other in batch) > BATCH:
        return False
    return not batch or piece.asked.call.what == batch[0].asked.call.what


def say(tell: Callable[[Any], None], event: Any) -> None:
    """Tell somebody the end; if that fails it is their loss alone."""
    try:
        tell(event)
    except Exception:
        log.warning("somebody could not be told what came", exc_info=True)


def written(
    engine: Engine, tokens: Sequence[int], settings: Generation, source: Sequence[int] | None = None,
    guide: Guide | None = None,
) -> Iterator[NewToken]:  # fmt: skip
    """One text, token by token, as it comes; whoever stops listening has cancelled it."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    job = Job(tokens, settings, events.put, source=source, guide=guide)
    engine.submit(job)

    def listen() -> Iterator[NewToken]:
        try:
            while not isinstance(event := events.get(), Ended):
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, NewToken):
                    yield event
        finally:
            if job.phase != "over":
                engine.cancel(job)

    return listen()

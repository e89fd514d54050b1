"""The engine: one thread that owns a model and serves many requests by continuous batching.

Other threads submit and cancel sequences and calls, and get events by callbacks on the engine's thread. A step of the
loop removes cancelled and timed-out work, prefills at most one chunk of prompts, decodes a token of every sequence, and
processes one batch of calls; so nothing waits for more than a step.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Tokens
from typing import Any

import torch

from anyformer import faults
from anyformer.engine.batch_calls import (
    Answers,
    BatchCall,
    CallCancelled,
    CallPiece,
    answer_batch,
    fits_batch,
    split_call,
)
from anyformer.engine.batch_runner import BatchRunner
from anyformer.engine.counts import Counts, Rate
from anyformer.engine.scheduler import Scheduler
from anyformer.engine.sequence import Event, Failed, Finished, Guide, NewToken, Sequence, prepare_sequence
from anyformer.engine.waiting_queue import EngineClosed, QueueFull, WaitingQueue
from anyformer.errors import UserError
from anyformer.generation.cache.store import SequenceStore
from anyformer.generation.config import Generation
from anyformer.generation.runners.eager import eval_mode
from anyformer.generation.stops import TextOf

log = logging.getLogger("anyformer")
IDLE = 0.005  # seconds between polls while no work can progress
SWEEP = 0.05  # seconds between sweeps of the queues
PATIENCE = 10.0  # seconds `stop` waits for a step to end
LONGEST = 600.0  # largest retry-after in seconds


class Engine:
    """Continuous batching over a store of sequences; without one it only processes calls. Thread-safe.

    `queue_tokens` bounds the prompt and maximal new tokens of waiting requests, `queue_rows` the number of requests and
    of rows of calls; `chunk` is how many prompt tokens are prefilled between two decode steps. `counts` is consistent
    while `lock` is held.
    """

    def __init__(self, store: SequenceStore | None, *, text_of: TextOf | None = None, queue_tokens: int = 65_536,
                 chunk: int = 256, queue_rows: int = 4_096) -> None:  # fmt: skip
        self.store, self.text_of = store, text_of
        self.counts = Counts()
        self.lock = threading.Condition()
        self.waiting: WaitingQueue[Sequence] = WaitingQueue(queue_tokens, queue_rows)
        self.calls: WaitingQueue[CallPiece] = WaitingQueue(queue_rows, queue_rows)
        self.in_flight: dict[Sequence | BatchCall, None] = {}  # accepted and not finished, in the order they came
        self.scheduler: Scheduler | None = None
        self.runner: BatchRunner | None = None
        if store is not None:
            self.use_scheduler(Scheduler(store, self.counts, chunk, self.end_sequence))
        self.broken: BaseException | None = None
        self.closing = self.stopping = self.touched = False
        self.swept = self.moved = time.monotonic()
        self.thread: threading.Thread | None = None

    def use_scheduler(self, scheduler: Scheduler) -> None:
        self.scheduler, self.runner = scheduler, BatchRunner(scheduler, self.counts)

    # ---------------------------------------------------------------- for any thread

    def start(self) -> None:
        """Start the engine's thread."""
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="anyformer-engine", daemon=True)
            self.thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Submit a sequence; raises UserError if it is invalid, QueueFull, or EngineClosed."""
        prepare_sequence(sequence, self.store, self.text_of)
        try:
            self.admit(sequence, self.waiting, [(sequence, sequence.cost)], self.counts.rate)
        except (QueueFull, EngineClosed):
            sequence.tokens = []  # it may be submitted again
            raise

    def call(self, call: BatchCall) -> None:
        """Submit a call; one without rows is answered immediately."""
        pieces = split_call(call)
        if not pieces:
            call.on_answer([])
            return
        self.admit(call, self.calls, [(piece, len(piece.rows)) for piece in pieces], self.counts.call_rate)

    def cancel(self, work: Sequence | BatchCall) -> None:
        """Cancel work; its slot is freed and its callback called before the next step."""
        work.cancelled = True
        with self.lock:
            self.touched = True
            self.lock.notify_all()

    def resume(self, sequences: Iterable[Sequence]) -> None:
        """Resume paused sequences whose clients have caught up, from the next step."""
        for sequence in sequences:
            sequence.paused = False
        with self.lock:
            self.lock.notify_all()

    def drain(self, seconds: float) -> bool:
        """Reject new work and wait until everything is finished; returns whether it is."""
        with self.lock:
            self.closing = True
            return self.lock.wait_for(lambda: not self.in_flight, seconds)

    def stop(self) -> None:
        """Stop immediately; remaining work gets Failed(EngineClosed)."""
        with self.lock:
            self.closing = self.stopping = True
            self.lock.notify_all()
        if self.thread is None:
            self.end_all()
        elif self.thread is not threading.current_thread():
            self.thread.join(PATIENCE)
            if self.thread.is_alive():  # it hangs inside the model; end the waiting requests anyway
                log.error("the engine did not come back within %.0f s", PATIENCE)
                self.close_all()

    @property
    def stuck_for(self) -> float:
        """Seconds without progress while there is work; 0 if idle, inf once broken."""
        if self.broken is not None:
            return math.inf
        return time.monotonic() - self.moved if self.in_flight else 0.0

    def check_room(self, client: str, tokens: int) -> None:
        """Raise QueueFull or EngineClosed if a sequence of this many tokens would be rejected; a cheap pre-check."""
        with self.lock:
            self.check_queue(client, tokens, self.waiting, self.counts.rate)

    def check_queue(self, client: str, cost: int, line: WaitingQueue[Any], rate: Rate) -> None:
        """Raise if work of this cost would be rejected now; requires the lock."""
        if self.closing or self.broken is not None:
            raise EngineClosed("the engine takes no more work")
        excess = line.excess(client, cost)
        if excess:
            self.counts.rejected += 1
            raise QueueFull(min(LONGEST, max(1.0, excess / rate.per_second)) if rate.per_second else 1.0)

    def admit(
        self, work: Sequence | BatchCall, line: WaitingQueue[Any], parts: list[tuple[Any, int]], rate: Rate
    ) -> None:
        """Queue work, or raise if it is rejected."""
        with self.lock:
            if work in self.in_flight:
                raise UserError("this work was submitted before", fix="make a new Sequence or BatchCall for each")
            self.check_queue(work.client, sum(cost for _, cost in parts), line, rate)
            for part, cost in parts:
                line.put(work.client, part, cost)
            if not self.in_flight:
                self.moved = time.monotonic()
            self.in_flight[work] = None
            self.counts.accepted += 1
            self.update_counts()
            self.lock.notify_all()

    # ---------------------------------------------------------------- the engine's own thread

    def run(self) -> None:
        """The engine's loop; however it ends, all remaining requests are ended."""
        try:
            with torch.no_grad(), contextlib.nullcontext() if self.store is None else eval_mode(self.store.model):
                while not self.stopping:
                    with self.lock:
                        while not self.in_flight and not self.stopping:
                            self.lock.wait()
                    if not self.stopping and not self.step():
                        with self.lock:
                            self.lock.wait(SWEEP if self.is_all_paused else IDLE)  # nothing can progress now
        except BaseException as error:
            self.broken = error
            log.exception("the engine has broken")
        finally:
            self.closing = True
            self.end_all()

    def step(self) -> bool:
        """Sweep, prefill a chunk, decode a token, process a batch of calls; returns whether there was work."""
        faults.point("engine-step")
        begun = time.monotonic()
        self.sweep(begun)
        tokens = rows = 0
        if self.runner is not None:
            tokens = self.runner.prefill(self.next_waiting) + self.runner.decode()
            if tokens:
                self.counts.rate.add(tokens, time.monotonic() - begun)
        if self.calls.length:
            before = time.monotonic()
            rows = self.answer_calls()
            self.counts.call_rate.add(rows, time.monotonic() - before)
        with self.lock:
            self.update_counts()
        if tokens or rows or self.is_all_paused:
            self.moved = time.monotonic()
        return bool(tokens or rows)

    @property
    def is_all_paused(self) -> bool:
        """Whether all remaining work is paused for slow clients, which does not count as stuck."""
        return self.scheduler is not None and len(self.scheduler.paused) == len(self.in_flight) > 0

    def sweep(self, now: float) -> None:
        """End all cancelled or timed-out work."""
        if self.scheduler is not None:
            self.scheduler.sweep(now)
        if not self.touched and now < self.swept + SWEEP:
            return
        with self.lock:
            self.touched, self.swept = False, now
            sequences = self.waiting.remove(lambda sequence: sequence.is_expired(now))
            pieces = self.calls.remove(lambda piece: piece.call.finished or piece.call.is_expired(now))
            self.update_counts()
        for sequence in sequences:
            self.end_sequence(sequence, Finished("cancelled" if sequence.cancelled else "deadline"))
        for piece in pieces:
            call = piece.call
            self.end_call(call, CallCancelled("cancelled") if call.cancelled else TimeoutError("too late"))

    def next_waiting(self, most: int | None) -> Sequence | None:
        """Take the next sequence from the queue, among those with at most `most` tokens to prefill."""
        with self.lock:
            found = self.waiting.take(None if most is None else lambda sequence: sequence.prefill_cost <= most)
            self.update_counts()
            return found

    def answer_calls(self) -> int:
        """Process one batch of calls with the same function; returns the number of rows."""
        batch: list[CallPiece] = []
        with self.lock:
            while (piece := self.calls.take(lambda piece: fits_batch(piece, batch))) is not None:
                batch.append(piece)
            self.update_counts()
        if batch:
            answer_batch(batch, self.end_call)
        count = sum(len(piece.rows) for piece in batch)
        self.counts.answered_rows += count
        return count

    # ---------------------------------------------------------------- ends

    def end_sequence(self, sequence: Sequence, event: Event) -> None:
        """Deliver a sequence's last event."""
        if self.forget(sequence, event.reason if isinstance(event, Finished) else "failed"):
            sequence.status = "finished"
            deliver(sequence.on_event, event)

    def end_call(self, call: BatchCall, found: Answers) -> None:
        """Deliver a call's result."""
        call.finished = self.touched = True  # its remaining pieces are swept from the queue
        how = "done"
        if isinstance(found, Exception):
            how = "deadline" if isinstance(found, TimeoutError) else "failed"
            how = "cancelled" if isinstance(found, CallCancelled) else how
        if self.forget(call, how):
            deliver(call.on_answer, found)

    def forget(self, work: Sequence | BatchCall, how: str) -> bool:
        """Remove work from `in_flight` and count its outcome; False if it had ended before."""
        with self.lock:
            if work not in self.in_flight:
                return False
            del self.in_flight[work]
            name = how if how in ("cancelled", "deadline", "failed") else "done"
            setattr(self.counts, name, getattr(self.counts, name) + 1)
            self.moved = time.monotonic()
            self.update_counts()
            self.lock.notify_all()
            return True

    def end_all(self) -> None:
        """Free all slots, then end all remaining requests."""
        try:
            if self.scheduler is not None:
                self.scheduler.release_all()
        finally:
            self.close_all()

    def close_all(self) -> None:
        """End all remaining requests with an error."""
        why = "the engine was stopped" if self.broken is None else "the engine has broken"
        with self.lock:
            self.waiting.remove(lambda sequence: True)
            self.calls.remove(lambda piece: True)
            left = list(self.in_flight)
        for work in left:
            if isinstance(work, Sequence):
                self.end_sequence(work, Failed(EngineClosed(why)))
            else:
                self.end_call(work, EngineClosed(why))

    def update_counts(self) -> None:
        """Update the queue and load counts; requires the lock."""
        counts = self.counts
        counts.in_flight, counts.queue_rows = len(self.in_flight), self.calls.cost
        counts.queue_length, counts.queue_tokens = self.waiting.length, self.waiting.cost
        if self.scheduler is not None:
            counts.active, counts.paused = self.scheduler.active, len(self.scheduler.paused)


def deliver(on_event: Callable[[Any], None], event: Any) -> None:
    """Deliver the last event of a request; an error of its callback is logged."""
    try:
        on_event(event)
    except Exception:
        log.warning("an event could not be delivered", exc_info=True)


def stream_tokens(
    engine: Engine, prompt: Tokens[int], settings: Generation, source: Tokens[int] | None = None,
    guide: Guide | None = None, on_finish: Callable[[str], object] = lambda reason: None,
) -> Generator[NewToken, None, None]:  # fmt: skip
    """Stream one output token by token; closing the generator cancels it. `on_finish` gets the finish reason."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    sequence = Sequence(prompt, settings, events.put, source=source, guide=guide)
    engine.submit(sequence)

    def listen() -> Generator[NewToken, None, None]:
        try:
            while not isinstance(event := events.get(), Finished):
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, NewToken):
                    yield event
            on_finish(event.reason)
        finally:
            if sequence.status != "finished":
                on_finish("cancelled")
                engine.cancel(sequence)

    return listen()

"""The engine: one thread that owns a model and serves many requests by continuous batching.

Other threads submit sequences and calls, cancel them, and are told on the engine's thread what comes of them. A step of
the loop sweeps out what was cancelled or has timed out, prefills at most one chunk of prompts, decodes a token of every
sequence, and answers one batch of calls; so nothing waits for more than a step.
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
IDLE = 0.005  # seconds between two looks at work that cannot move
SWEEP = 0.05  # seconds between two looks at what waits
PATIENCE = 10.0  # seconds `stop` waits for a step to end
LONGEST = 600.0  # seconds anybody is told to wait


class Engine:
    """Continuous batching over a store of sequences; without one it only answers calls. Any thread may use it.

    `queue_tokens` bounds the waiting prompts together with what they may generate, `queue_rows` the requests and the
    rows of calls; `chunk` is how many tokens of prompts are prefilled between two decode steps. What `counts` says is
    consistent while `lock` is held.
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
        """Begin to work."""
        if self.thread is None:
            self.thread = threading.Thread(target=self.run, name="anyformer-engine", daemon=True)
            self.thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Hand over a sequence; UserError for what is wrong with it, QueueFull, or EngineClosed at the end."""
        prepare_sequence(sequence, self.store, self.text_of)
        try:
            self.admit(sequence, self.waiting, [(sequence, sequence.cost)], self.counts.rate)
        except (QueueFull, EngineClosed):
            sequence.tokens = []  # it may be submitted again
            raise

    def call(self, call: BatchCall) -> None:
        """Hand over a call; one without rows is answered at once."""
        pieces = split_call(call)
        if not pieces:
            call.on_answer([])
            return
        self.admit(call, self.calls, [(piece, len(piece.rows)) for piece in pieces], self.counts.call_rate)

    def cancel(self, work: Sequence | BatchCall) -> None:
        """Ask for nothing more; before the next step its slot is free and it is told."""
        work.cancelled = True
        with self.lock:
            self.touched = True
            self.lock.notify_all()

    def resume(self, sequences: Iterable[Sequence]) -> None:
        """Their clients, who were behind (`Sequence.paused`), have caught up; they continue with the next step."""
        for sequence in sequences:
            sequence.paused = False
        with self.lock:
            self.lock.notify_all()

    def drain(self, seconds: float) -> bool:
        """Take no more work and wait until all is finished; whether it is."""
        with self.lock:
            self.closing = True
            return self.lock.wait_for(lambda: not self.in_flight, seconds)

    def stop(self) -> None:
        """End at once; what is left is told Failed(EngineClosed)."""
        with self.lock:
            self.closing = self.stopping = True
            self.lock.notify_all()
        if self.thread is None:
            self.end_all()
        elif self.thread is not threading.current_thread():
            self.thread.join(PATIENCE)
            if self.thread.is_alive():  # it hangs inside the model; those who wait need not
                log.error("the engine did not come back within %.0f s", PATIENCE)
                self.close_all()

    @property
    def stuck_for(self) -> float:
        """Seconds without progress while there is work; 0 when idle, endless once broken."""
        if self.broken is not None:
            return math.inf
        return time.monotonic() - self.moved if self.in_flight else 0.0

    def check_room(self, client: str, tokens: int) -> None:
        """QueueFull or EngineClosed where a sequence of so many tokens would be rejected; cheap to ask first."""
        with self.lock:
            self.check_queue(client, tokens, self.waiting, self.counts.rate)

    def check_queue(self, client: str, cost: int, line: WaitingQueue[Any], rate: Rate) -> None:
        """Raises what work of this cost would be told now; under the lock."""
        if self.closing or self.broken is not None:
            raise EngineClosed("the engine takes no more work")
        excess = line.excess(client, cost)
        if excess:
            self.counts.rejected += 1
            raise QueueFull(min(LONGEST, max(1.0, excess / rate.per_second)) if rate.per_second else 1.0)

    def admit(
        self, work: Sequence | BatchCall, line: WaitingQueue[Any], parts: list[tuple[Any, int]], rate: Rate
    ) -> None:
        """Put work in line, or say why not."""
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
        """The loop; however it ends, everybody who waits is told."""
        try:
            with torch.no_grad(), contextlib.nullcontext() if self.store is None else eval_mode(self.store.model):
                while not self.stopping:
                    with self.lock:
                        while not self.in_flight and not self.stopping:
                            self.lock.wait()
                    if not self.stopping and not self.step():
                        with self.lock:
                            self.lock.wait(SWEEP if self.is_all_paused else IDLE)  # work that cannot move now
        except BaseException as error:
            self.broken = error
            log.exception("the engine has broken")
        finally:
            self.closing = True
            self.end_all()

    def step(self) -> bool:
        """Sweep, prefill a chunk, decode a token, answer a batch; whether there was anything to do."""
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
        """Whether all that is left waits for its clients: that is nobody's fault here."""
        return self.scheduler is not None and len(self.scheduler.paused) == len(self.in_flight) > 0

    def sweep(self, now: float) -> None:
        """End what was cancelled or has timed out, wherever it is."""
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
        """The sequence whose turn it is to get a slot, among those with at most so many tokens to prefill."""
        with self.lock:
            found = self.waiting.take(None if most is None else lambda sequence: sequence.prefill_cost <= most)
            self.update_counts()
            return found

    def answer_calls(self) -> int:
        """Answer calls of one function, as many rows as are answered at once; how many."""
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
        """The last thing a sequence is told."""
        if self.forget(sequence, event.reason if isinstance(event, Finished) else "failed"):
            sequence.status = "finished"
            deliver(sequence.on_event, event)

    def end_call(self, call: BatchCall, found: Answers) -> None:
        """What a call is told."""
        call.finished = self.touched = True  # what is left of it in the queue is swept out
        how = "done"
        if isinstance(found, Exception):
            how = "deadline" if isinstance(found, TimeoutError) else "failed"
            how = "cancelled" if isinstance(found, CallCancelled) else how
        if self.forget(call, how):
            deliver(call.on_answer, found)

    def forget(self, work: Sequence | BatchCall, how: str) -> bool:
        """Count how something ended; False where it had ended before."""
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
        """Free all slots, then end every request that is left."""
        try:
            if self.scheduler is not None:
                self.scheduler.release_all()
        finally:
            self.close_all()

    def close_all(self) -> None:
        """End every request that is left with an error."""
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
        """Bring the counts of what waits and runs up to date; under the lock."""
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
    """One output, token by token, as it comes; closing the generator cancels it. `on_finish` gets the finish reason."""
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

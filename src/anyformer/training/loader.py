"""Batches for a range of steps, made in this process or in workers. A step's batches depend on its number only."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from anyformer.data.examples import Draw, Examples
from anyformer.data.order import Order
from anyformer.objectives import Batch, Objective
from anyformer.parent_death import end_with_parent

DEPTH = 3  # steps prefetched to the device
PATIENCE = 5.0  # seconds to wait for the thread to end


def seed_of(*numbers: int) -> int:
    """One seed from several numbers, the same on every machine (splitmix64)."""
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return mixed % 2**63


@dataclass
class Steps(Dataset[list[Batch]]):
    """Item n is the list of micro-batches of step n, augmented, mixed and weighted.

    With several processes each takes a consecutive part of the micro-batches that a single process would take, with the
    same numbers, which seed the randomness. All get equally many: the last ones are padded with one-row fillers.
    """

    examples: Examples
    order: Order
    objective: Objective
    micro: int
    part: int = 0  # which of the processes' `parts` this is
    parts: int = 1

    def __getitem__(self, step: int) -> list[Batch]:
        rows, draw = self.order.at(step)
        micro = min(self.micro, max(1, self.order.stage(step).batch // self.parts))  # early steps may have fewer rows
        micros = [rows[i : i + micro] for i in range(0, len(rows), micro)]
        each = -(-len(micros) // self.parts)
        first = self.part * each
        mine = [self.prepare(step, first + i, rows, draw) for i, rows in enumerate(micros[first : first + each])]
        fillers = [
            replace(self.prepare(step, 0, rows[:1], draw), filler=True, weight=0) for _ in range(each - len(mine))
        ]
        return mine + fillers

    def prepare(self, step: int, number: int, rows: np.ndarray, draw: Draw) -> Batch:
        """One micro-batch; `number` is its index in the whole step."""
        generator = torch.Generator().manual_seed(seed_of(self.order.seed, step, number))
        asked = self.objective.corrupt(self.examples.batch(rows, draw), draw, self.examples)
        made = self.objective.prepare(asked, generator)
        return replace(made, weight=self.objective.weight(made))

    def rows(self, step: int) -> Tensor:
        """The rows of a step, of all processes together."""
        return torch.from_numpy(self.order.at(step)[0])

    def __len__(self) -> int:
        return 2**62  # steps have no end; the loader asks for a range of them


@contextmanager
def stream(
    steps: Steps, start: int, stop: int, *, workers: int, device: torch.device
) -> Iterator[Iterator[list[Batch]]]:
    """Yield the batches of steps start to stop - 1, in order; for a GPU they are prefetched in a thread.

    Workers are forked immediately, before other threads exist.
    """
    batches = make_batches(steps, start, stop, workers)
    if device.type != "cuda":
        yield batches
        return
    ahead = Prefetcher(batches, device)
    try:
        yield ahead
    finally:
        ahead.close()


def make_batches(steps: Steps, start: int, stop: int, workers: int) -> Iterator[list[Batch]]:
    """The batches of steps start to stop - 1, made on demand or by workers."""
    if workers == 0 or start == stop:
        return (steps[step] for step in range(start, stop))
    loader: DataLoader[list[Batch]] = DataLoader(
        steps,
        batch_size=None,
        sampler=range(start, stop),
        num_workers=workers,
        prefetch_factor=4,
        # Its own generator: creating a loader would advance the default one.
        generator=torch.Generator().manual_seed(0),
        multiprocessing_context=multiprocessing.get_context("fork"),
        worker_init_fn=partial(begin_worker, os.getpid()),
    )
    # Ctrl-C and a batch system's SIGTERM reach the whole process group; a worker killed by them would fail the step
    # that the training process wants to finish and save. Workers inherit the blocked mask, and exit by themselves when
    # that process is gone.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    on_death = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        # torch's SIGCHLD handler raises wherever this process happens to be when a worker dies: in the middle of a
        # checkpoint, or of reporting the death. Without it the next fetch notices within five seconds.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, on_death)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(parent: int, worker: int) -> None:
    """Initialise a worker: one thread, so as not to compete with training, and exit with the parent."""
    end_with_parent(parent)
    torch.set_num_threads(1)


class Prefetcher(Iterator[list[Batch]]):
    """Takes batches from an iterator in a thread, and copies them to the device a few steps ahead.

    Data loading and compute then overlap. The order is the iterator's. An error in the thread is raised by the `next`
    call that would have returned the failed batch.
    """

    def __init__(self, batches: Iterator[list[Batch]], device: torch.device, depth: int = DEPTH) -> None:
        self.batches, self.device = batches, device
        self.copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.made: queue.Queue[Fetched] = queue.Queue(depth)
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self.run, name="prefetch", daemon=True)
        self.thread.start()

    def __next__(self) -> list[Batch]:
        found = self.made.get()
        if found.error is not None:
            self.made.put(found)  # every further call raises it again
            raise found.error
        if found.copied is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(found.copied)
            # The memory belongs to the copy stream, which must not reuse it for another batch too early.
            for batch in found.batches:
                batch.map(lambda tensor: mark_used(tensor, current))
        return found.batches

    def run(self) -> None:
        """Thread body: fetch until the iterator ends, an error occurs, or it is closed."""
        try:
            for batches in self.batches:
                if not self.offer(self.copy(batches)):
                    return
            self.offer(Fetched(error=StopIteration()))
        except BaseException as error:
            self.offer(Fetched(error=error))

    def copy(self, batches: list[Batch]) -> Fetched:
        """Start copying the batches to the device on a separate stream."""
        if self.copies is None:
            return Fetched(batches)
        with torch.cuda.stream(self.copies):
            there = [batch.map(Tensor.pin_memory).to(self.device) for batch in batches]
            return Fetched(there, self.copies.record_event())

    def offer(self, found: Fetched) -> bool:
        """Queue a result as soon as there is room; False once closed."""
        while not self.closed.is_set():
            with suppress(queue.Full):
                self.made.put(found, timeout=0.1)
                return True
        return False

    def close(self) -> None:
        """Stop the thread; one in the middle of a fetch stops after it, and is waited for at most PATIENCE seconds."""
        self.closed.set()
        self.thread.join(PATIENCE)


@dataclass
class Fetched:
    """A prefetched step: its batches, or the error instead."""

    batches: list[Batch] = field(default_factory=list)
    copied: torch.cuda.Event | None = None  # recorded once the copies are complete
    error: BaseException | None = None


def mark_used(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """Keep a tensor's memory until a stream has finished its work queued so far."""
    tensor.record_stream(stream)
    return tensor

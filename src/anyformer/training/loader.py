"""Batches for a range of steps, made in this process or in workers. A step's batches depend on its number alone."""

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

DEPTH = 3  # steps whose batches wait on the device
PATIENCE = 5.0  # seconds to wait for a thread that ends


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
    """Item n is what step n trains on: its micro-batches, augmented, blended and weighed.

    Of several processes each takes a run of the micro-batches that one process would take; their numbers, from which
    randomness follows, stay the same. All get as many: where there are not enough, the last get one row as a filler.
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
        """One micro-batch; `number` is its place in the whole step."""
        generator = torch.Generator().manual_seed(seed_of(self.order.seed, step, number))
        asked = self.objective.corrupt(self.examples.batch(rows, draw), draw, self.examples)
        made = self.objective.prepare(asked, generator)
        return replace(made, weight=self.objective.weight(made))

    def rows(self, step: int) -> Tensor:
        """The rows of a step in all processes."""
        return torch.from_numpy(self.order.at(step)[0])

    def __len__(self) -> int:
        return 2**62  # steps have no end; the loader asks for a range of them


@contextmanager
def stream(
    steps: Steps, start: int, stop: int, *, workers: int, device: torch.device
) -> Iterator[Iterator[list[Batch]]]:
    """The batches of steps start to stop - 1, in order, while the `with` block runs; for a GPU made and copied ahead.

    Workers start here and now, before others start threads.
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
    """The batches of steps start to stop - 1, made when they are asked for or by workers."""
    if workers == 0 or start == stop:
        return (steps[step] for step in range(start, stop))
    loader: DataLoader[list[Batch]] = DataLoader(
        steps,
        batch_size=None,
        sampler=range(start, stop),
        num_workers=workers,
        prefetch_factor=4,
        # Its own generator: the default one would be moved on by making a loader.
        generator=torch.Generator().manual_seed(0),
        multiprocessing_context=multiprocessing.get_context("fork"),
        worker_init_fn=partial(begin_worker, os.getpid()),
    )
    # Ctrl-C and a batch system's SIGTERM reach the whole group; a worker that died of it would fail the step that the
    # training process wants to finish and save. Workers inherit the mask and never hear them; they end by themselves
    # when that process is gone.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    on_death = signal.getsignal(signal.SIGCHLD)
    try:
        return iter(loader)
    finally:
        # torch has set a handler that raises wherever this process happens to be when a worker dies: in the middle of
        # a checkpoint, or of saying that the worker died. Without it the next fetch finds out, within five seconds.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, on_death)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(parent: int, worker: int) -> None:
    """Workers do not compete with training for the cores, and do not outlive it."""
    end_with_parent(parent)
    torch.set_num_threads(1)


class Prefetcher(Iterator[list[Batch]]):
    """Batches that a thread takes from an iterator, and copies to the device, a few steps ahead of whoever asks.

    A step then takes as long as the slower of its data and its arithmetic, not as long as both. The order is the
    iterator's own. An error of the thread is raised by the `next` that would have brought the batch it failed at.
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
            self.made.put(found)  # whoever asks again hears it again
            raise found.error
        if found.copied is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(found.copied)
            # The memory was taken on the stream of the copies, which must not give it to another batch too early.
            for batch in found.batches:
                batch.map(lambda tensor: mark_used(tensor, current))
        return found.batches

    def run(self) -> None:
        """What the thread does: fetch until there is nothing more, an error, or nobody who asks."""
        try:
            for batches in self.batches:
                if not self.offer(self.copy(batches)):
                    return
            self.offer(Fetched(error=StopIteration()))
        except BaseException as error:
            self.offer(Fetched(error=error))

    def copy(self, batches: list[Batch]) -> Fetched:
        """The batches on the device; the copies are under way on a stream of their own."""
        if self.copies is None:
            return Fetched(batches)
        with torch.cuda.stream(self.copies):
            there = [batch.map(Tensor.pin_memory).to(self.device) for batch in batches]
            return Fetched(there, self.copies.record_event())

    def offer(self, found: Fetched) -> bool:
        """Put something where it is asked for, as soon as there is room; False once nobody asks any more."""
        while not self.closed.is_set():
            with suppress(queue.Full):
                self.made.put(found, timeout=0.1)
                return True
        return False

    def close(self) -> None:
        """End the thread; one that is in the middle of a fetch ends after it, and is not waited for too long."""
        self.closed.set()
        self.thread.join(PATIENCE)


@dataclass
class Fetched:
    """What a prefetching thread hands over: the batches of a step, or why there are none."""

    batches: list[Batch] = field(default_factory=list)
    copied: torch.cuda.Event | None = None  # happens on the device when they are there
    error: BaseException | None = None


def mark_used(tensor: Tensor, stream: torch.cuda.Stream) -> Tensor:
    """Keep the memory of a tensor until a stream is through with what it has been given so far."""
    tensor.record_stream(stream)
    return tensor

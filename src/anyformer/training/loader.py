"""Batches for a range of steps, made in this process or in workers. A step's batches depend on its number alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from anyformer.data.examples import Draw, Examples
from anyformer.data.order import Order
from anyformer.objectives import Batch, Objective
from anyformer.parent_death import end_with_parent


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
    """Item n is what step n trains on: its micro-batches, augmented and blended.

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
        micros = [rows[i : i + self.micro] for i in range(0, len(rows), self.micro)]
        each = -(-len(micros) // self.parts)
        first = self.part * each
        mine = [self.prepare(step, first + i, rows, draw) for i, rows in enumerate(micros[first : first + each])]
        fillers = [replace(self.prepare(step, 0, rows[:1], draw), filler=True) for _ in range(each - len(mine))]
        return mine + fillers

    def prepare(self, step: int, number: int, rows: np.ndarray, draw: Draw) -> Batch:
        """One micro-batch; `number` is its place in the whole step."""
        generator = torch.Generator().manual_seed(seed_of(self.order.seed, step, number))
        return self.objective.prepare(self.examples.batch(rows, draw), generator)

    def rows(self, step: int) -> Tensor:
        """The rows of a step in all processes."""
        return torch.from_numpy(self.order.at(step)[0])

    def __len__(self) -> int:
        return 2**62  # steps have no end; the loader asks for a range of them


def stream(steps: Steps, start: int, stop: int, *, workers: int, pin: bool) -> Iterator[list[Batch]]:
    """The batches of steps start to stop - 1, in order. Workers start here and now, before others start threads."""
    if workers == 0 or start == stop:
        return (steps[step] for step in range(start, stop))
    loader: DataLoader[list[Batch]] = DataLoader(
        steps,
        batch_size=None,
        sampler=range(start, stop),
        num_workers=workers,
        prefetch_factor=4,
        pin_memory=pin,
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

"""Measure the cases of a claim, in parallel on several cores, except for cases that measure time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import NamedTuple

import torch

from anyformer.lab.claim import Case, Claim, Result
from anyformer.parent_death import end_with_parent


class MeasuredCase(NamedTuple):
    """A case, its result, and its wall-clock and CPU seconds."""

    case: Case
    result: Result
    seconds: float
    processor: float


def measured(claim: Claim, cases: Sequence[Case], workers: int) -> Iterator[MeasuredCase]:
    """Every case with its result, in order of completion.

    The networks of a case are small: two processes of one thread each finish sooner than one process of two threads,
    above all on a machine that has other work. Cases that measure time follow alone.
    """
    shared = [case for case in cases if not claim.measures_time(case)]
    if workers < 2 or len(shared) < 2 or "fork" not in multiprocessing.get_all_start_methods():
        shared = []
    yield from in_workers(claim.measure, shared, workers)
    for case in cases:
        if case not in shared:
            yield one(claim.measure, case)


def in_workers(measure: Callable[[Case], Result], cases: Sequence[Case], workers: int) -> Iterator[MeasuredCase]:
    """Measure cases in forked processes, which end with this process, however it ends."""
    if not cases:
        return
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        # Python warns about forking with threads; a worker uses only one thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        pool = ProcessPoolExecutor(min(workers, len(cases)), context, start_worker, (os.getpid(),))
        try:
            running = [pool.submit(one, measure, case) for case in cases]
            for done in as_completed(running):
                yield done.result()
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def start_worker(parent: int) -> None:
    """Set up a worker: one thread, and a silent exit on Ctrl-C, which the parent reports."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    end_with_parent(parent)
    torch.set_num_threads(1)


def one(measure: Callable[[Case], Result], case: Case) -> MeasuredCase:
    """Measure and time one case."""
    began, worked = time.perf_counter(), time.process_time()
    result = dict(measure(case))
    return MeasuredCase(case, result, time.perf_counter() - began, time.process_time() - worked)

"""Measures the cases of a claim: in parallel where there are several cores, one at a time where time is measured."""

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
    """A case, what it gave, and the seconds it took: by the clock, and of the processor, beside other work or not."""

    case: Case
    result: Result
    seconds: float
    processor: float


def measured(claim: Claim, cases: Sequence[Case], workers: int) -> Iterator[MeasuredCase]:
    """Every case with its result, as they come.

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
    """The cases in forked processes; however this one ends, they end with it."""
    if not cases:
        return
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        # Python warns of threads that a fork leaves behind; a worker uses one thread only.
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
    """One thread, and an end without words where Ctrl-C is pressed: the parent says what there is to say."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    end_with_parent(parent)
    torch.set_num_threads(1)


def one(measure: Callable[[Case], Result], case: Case) -> MeasuredCase:
    """One case, timed."""
    began, worked = time.perf_counter(), time.process_time()
    result = dict(measure(case))
    return MeasuredCase(case, result, time.perf_counter() - began, time.process_time() - worked)

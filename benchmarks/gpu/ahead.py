"""Compiling ahead of the measurements, in several processes at once: what is timed later finds its code on disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch

from benchmarks.gpu.jobs import Place, list_jobs
from benchmarks.gpu.timing import forget_everything, start_program

MOST = 240.0  # seconds that compiling ahead may take; what is not done by then is compiled when it is measured
SHARE = 0.35  # of the time of the whole run
THREADS = "TORCHINDUCTOR_COMPILE_THREADS"


def first_step_seconds(place: Place, job: str, number: int) -> float | None:
    """Start one program of a job in a fresh process: seconds to its first step, the imports left out."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(start_one, place, job, number).result()


def compile_ahead(place: Place, jobs: Iterable[str], processes: int, minutes: float) -> None:
    """Start every program of these jobs once, a few at a time, and throw the results away."""
    wanted = set(jobs)
    found = {(job.name, n): program for job in list_jobs(place) if job.name in wanted
             for n, program in enumerate(job.programs)}  # fmt: skip
    began = time.perf_counter()
    os.environ[THREADS] = "1"  # for the processes below: the compiler in each would start one for every core
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    tasks = {pool.submit(start_one, place, *key): key for key in found}
    try:
        for future in as_completed(tasks, timeout=min(MOST, SHARE * minutes * 60)):
            job, program = tasks[future][0], found[tasks[future]]
            print(
                f"  ahead: {job} {program.system} {program.mode} after {time.perf_counter() - began:.0f} s", flush=True
            )
    except TimeoutError:
        print(
            f"  ahead: out of time, {sum(not task.done() for task in tasks)} of {len(tasks)} programs left", flush=True
        )
        for process in list(pool._processes.values()):
            process.kill()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        del os.environ[THREADS]


def start_one(place: Place, job: str, number: int) -> float | None:
    torch.set_float32_matmul_precision("high")
    program = next(found for found in list_jobs(place) if found.name == job).programs[number]
    result = start_program(program, place.torch_device)[0]
    forget_everything(place.torch_device)
    return result.first_step

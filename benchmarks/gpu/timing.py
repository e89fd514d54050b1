"""What is measured, and how: programs that do the same work, timed in turns in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

ROUNDS = 5
WARM_STEPS = 4  # after the first: caches fill, recorded graphs are recorded
ROUND_SECONDS = 0.3  # a round of small steps takes as long, so that the clock's own error does not count
FEWEST, MOST = 5, 200  # steps of a round

Step = Callable[[], object]


class NotRun(Exception):
    """A program that cannot be measured here, with the reason: it is a row of the table and no failure."""


@dataclass(frozen=True)
class Program:
    """One side of a comparison. `start` makes the model and everything around it and returns its step."""

    system: str
    mode: str
    start: Callable[[], Step]


@dataclass(frozen=True)
class Job:
    """The same work done by several programs."""

    name: str
    group: str  # what `--only` may also say
    work: str  # in words, for the table
    unit: str  # what is counted: tokens, rows or images
    batch: int
    length: int  # units of a batch's row
    programs: tuple[Program, ...]
    depth: int | None = None
    flops: float | None = None  # of a step


@dataclass
class Result:
    """What a program showed; figures are None where it was not run."""

    program: Program
    first_step: float | None = None  # seconds, with building and compiling
    warm: float = 0.0  # seconds of one of the steps after it
    peak: int | None = None  # bytes
    rounds: list[float] = field(default_factory=list)  # seconds of a step
    note: str = ""

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def spread(self) -> float | None:
        """The slowest round over the quickest."""
        return max(self.rounds) / min(self.rounds) if self.rounds else None


def run_job(job: Job, device: torch.device, *, quick: bool = False) -> list[Result]:
    """Start every program, then time them in turns, so that a change of the machine meets all of them alike."""
    started: list[tuple[Result, Step]] = []
    results = []
    for program in job.programs:
        result, step = start_program(program, device)
        results.append(result)
        if step is not None:
            started.append((result, step))
    for _ in range(ROUNDS):
        for result, step in started:
            try:
                result.rounds.append(seconds_a_step(step, 1 if quick else steps_of_a_round(result.warm), device))
            except Exception as error:
                result.note = describe(error)
    return results


def steps_of_a_round(seconds: float) -> int:
    return min(MOST, max(FEWEST, round(ROUND_SECONDS / max(seconds, 1e-6))))


def start_program(program: Program, device: torch.device) -> tuple[Result, Step | None]:
    """Build it and do its first steps; no step where it could not be started."""
    result = Result(program)
    wait(device)
    before = 0
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    try:
        began = time.perf_counter()
        step = program.start()
        step()
        wait(device)
        result.first_step = time.perf_counter() - began
        result.warm = seconds_a_step(step, WARM_STEPS, device)
    except NotRun as reason:
        result.note = f"not run: {reason}"
        return result, None
    except Exception as error:  # another's program, or a device too small: the other rows are still measured
        result.note = describe(error)
        return result, None
    if device.type == "cuda":
        result.peak = torch.cuda.max_memory_allocated() - before
    return result, step


def describe(error: Exception) -> str:
    words = " ".join(str(error).split())
    return f"failed: {type(error).__name__}: {words[:160]}"


def seconds_a_step(step: Step, count: int, device: torch.device) -> float:
    wait(device)
    began = time.perf_counter()
    for _ in range(count):
        step()
    wait(device)
    return (time.perf_counter() - began) / count


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def forget_everything(device: torch.device) -> None:
    """Give memory and compiled code back, so that a job does not see what ran before it."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()

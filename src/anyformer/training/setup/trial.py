"""Trial steps before the first one, on weights that are then restored, to time a step and choose how to run it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import nn

from anyformer.data.prepared import Prepared
from anyformer.log import Log
from anyformer.tasks import Evaluator, find
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.duration import Plan
from anyformer.training.loader import Steps
from anyformer.training.settings import Config
from anyformer.training.setup.compile_choice import CompileCost, record_path, write_cost
from anyformer.training.setup.determinism import is_deterministic, use_deterministic
from anyformer.training.step import TrainingEngine

TRIAL = 0.25  # seconds of steps that are timed
TRIAL_SHARE = 0.05  # fraction of the budget after which no other number of threads is tried
TOGETHER = 5  # GPU steps timed together, since training does not synchronise after each
GROWTH = 4  # growth factor of the rows in the next attempt
FIRST_ROWS = 8  # rows of the first timed evaluation
SLIGHT = 0.1  # fraction of a step below which making its batches is not worth a worker
HANDOVER = 0.002  # seconds to transfer a batch from a worker: making it must take longer


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, of making its batches, and of the very first step, which also initialises and compiles."""

    work: float
    fetch: float
    first: float = 0.0

    def total(self, device: torch.device, workers: int) -> float:
        """Seconds per step with data loading: workers, and the prefetch thread of a GPU, overlap it with compute."""
        if workers:
            return max(self.work, self.fetch / workers)
        return max(self.work, self.fetch) if device.type == "cuda" else self.work + self.fetch


@dataclass
class Trial:
    """A model with everything its steps need. Every method leaves it modified.

    With several processes the first one's timing decides for all.
    """

    model: nn.Module
    config: Config
    steps: Steps
    device: torch.device
    parallel: Parallel

    def run(self, *, compiled: bool, warm: bool = True) -> StepTime:
        """Time a step; the first one, which initialises, allocates and compiles, is timed separately."""
        training = self.config.training.replace(steps=None, epochs=None, minutes=None)
        engine = TrainingEngine(self.model, self.config.objective, training, Plan(10**6), self.parallel)
        if compiled:
            engine.compile()
        together, number, first = TOGETHER if self.device.type == "cuda" else 1, 0, 0.0
        for _ in range(together if warm else 0):
            began = time.perf_counter()
            engine.step(number, self.steps[number])
            wait(self.device)
            first, number = max(first, time.perf_counter() - began), number + 1
        began, seconds, fetch, count = time.perf_counter(), 0.0, 0.0, 0
        while not count or (seconds < TRIAL and count < 50):
            for _ in range(together):
                asked = time.perf_counter()
                micros = self.steps[number]
                fetch += time.perf_counter() - asked
                engine.step(number, micros)
                count, number = count + 1, number + 1
            wait(self.device)
            seconds = self.parallel.peers.broadcast(lambda: time.perf_counter() - began)
        engine.release()
        fetch, first = self.parallel.peers.broadcast(lambda: [fetch, first])
        return StepTime((seconds - fetch) / count, fetch / count, first)

    def fastest(self) -> StepTime:
        """Time a step with the fastest number of threads, which stays set.

        A small model gains nothing from many cores, and if another program occupies a core, two threads wait for each
        other at every operation and are slower than one. With several processes the launcher assigns the cores.
        """
        training = self.config.training
        if self.device.type != "cpu" or training.threads is not None or not self.parallel.peers.world.is_alone:
            return self.run(compiled=False)
        most, began = torch.get_num_threads(), time.perf_counter()
        limit = math.inf if training.minutes is None else TRIAL_SHARE * 60 * training.minutes
        times: dict[int, StepTime] = {}
        for threads in sorted({1, 2, 4, 8, most}, reverse=True):
            if threads <= most and time.perf_counter() - began < limit:
                torch.set_num_threads(threads)
                times[threads] = self.run(compiled=False, warm=not times)
        best = min(times, key=lambda threads: times[threads].work)
        torch.set_num_threads(best)
        return times[best]

    def compare_deterministic(self) -> tuple[float, float]:
        """Step times with and without deterministic algorithms, each the better of two."""
        times: dict[bool, list[float]] = {True: [], False: []}
        for on in (False, True, False, True):
            use_deterministic(on)
            times[on].append(self.run(compiled=False).work)
        return min(times[True]), min(times[False])

    def compile(self, eager: StepTime, log: Log) -> StepTime | None:
        """Compile and time a step; None if `auto` failed to. This process then trains with the compiled code."""
        use_deterministic(is_deterministic(self.config.training, self.device, compiled=True))
        path = record_path(self.config, self.steps[0][0], self.device)
        asked, peers = self.config.training.compile is True, self.parallel.peers
        try:
            found = self.run(compiled=True)
        except Exception as error:  # a compiler may raise anything: eager steps are only slower
            if asked or not peers.world.is_alone or isinstance(error, torch.OutOfMemoryError):
                raise
            log(f"compile  off: it failed ({' '.join(str(error).split())[:120] or type(error).__name__})")
            return None
        cost = CompileCost(max(0.01, found.first - found.work), eager.work / found.work, is_warm=path.is_file())
        if peers.is_first:
            write_cost(path, cost)
        log(f"compile  took {cost.seconds:,.1f} s: {found.work * 1e3:,.1f} ms a step, {eager.work * 1e3:,.1f} without")
        return found if asked or cost.gain > 1 else None


def choose_workers(found: StepTime, device: torch.device, threads: int, cores: int) -> int:
    """Number of data workers, if training would wait for batches. A GPU's prefetch thread hides loading that takes no
    longer than the step; on a CPU workers only help on cores that training leaves free."""
    free = cores - (1 if device.type == "cuda" else threads)
    hidden = found.work if device.type == "cuda" else SLIGHT * found.work
    if found.fetch <= max(hidden, HANDOVER) or free < 1:
        return 0
    return min(free, math.ceil(found.fetch / found.work) + (1 if device.type == "cuda" else 0))


def time_evaluation(model: nn.Module, config: Config, data: Prepared) -> float:
    """Seconds to evaluate one validation row, measured with more and more rows up to a batch: with few rows the
    overhead
    dominates, and a first call also includes one-time initialisation."""
    assert data.valid is not None
    size = max(32, config.training.micro_batch_size or 32)
    evaluator = Evaluator(config.objective, data.preprocess, data.tokenizer, batch_size=size)
    most = max(1, min(len(data.valid), size))
    count, is_first = min(FIRST_ROWS, most), True
    while True:
        began = time.perf_counter()
        evaluator(model, data.valid, most=count, decode=False)
        took = time.perf_counter() - began
        if took > TRIAL or (not is_first and (count == most or GROWTH * took > TRIAL)):
            return took / count
        count, is_first = count if is_first else min(most, GROWTH * count), False


def time_writing(model: nn.Module, config: Config, data: Prepared, row: float, most: int = FIRST_ROWS) -> float:
    """Seconds to generate the texts of the final evaluation, without evaluating them, measured by generating `most`.

    Untrained weights rarely emit the end token, so before the first step this is an overestimate.
    """
    side = data.valid if data.test is None else data.test
    if not find(config.task).decodes or side is None or not len(side):
        return 0.0
    size = max(32, config.training.micro_batch_size or 32)
    evaluator = Evaluator(config.objective, data.preprocess, data.tokenizer, batch_size=size)
    count = min(len(side), size, most)
    began = time.perf_counter()
    evaluator(model, side, most=count, decode=True)
    # A batch takes about as long as a few of its rows: tokens are generated in sequence, rows in parallel.
    return max(0.0, time.perf_counter() - began - row * count) * -(-len(side) // size)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

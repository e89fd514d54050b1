"""A few steps before the first one, on weights that are then put back: how long a step takes here, and in which way."""

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
TRIAL_SHARE = 0.05  # of a run's time after which no other number of threads is tried
TOGETHER = 5  # steps of a GPU that are timed at once, as in training nobody waits for each of them
GROWTH = 4  # times the rows of the next attempt
FIRST_ROWS = 8  # rows evaluated to see how long an evaluation takes
SLIGHT = 0.1  # share of a step below which making its batches is not worth a process
HANDOVER = 0.002  # seconds that a process needs to hand over a batch: making it must take longer


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step, of making its batches, and of the very first step, which also loads and compiles."""

    work: float
    fetch: float
    first: float = 0.0

    def total(self, device: torch.device, workers: int) -> float:
        """Seconds from one step to the next: workers, and the thread that a GPU has, make batches meanwhile."""
        if workers:
            return max(self.work, self.fetch / workers)
        return max(self.work, self.fetch) if device.type == "cuda" else self.work + self.fetch


@dataclass
class Trial:
    """A model with all that its steps need. It is left changed by every method.

    Of several processes the first one's clock counts, so that all of them do the same.
    """

    model: nn.Module
    config: Config
    steps: Steps
    device: torch.device
    parallel: Parallel

    def run(self, *, compiled: bool, warm: bool = True) -> StepTime:
        """Seconds a step takes; the first one, which loads, allocates and compiles, is timed apart."""
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
        """Seconds a step takes with the number of threads that is best here, which is left set.

        A small model gains nothing from many cores, and where another program holds a core, two threads wait for each
        other at every operation and are slower than one. Several processes share the cores as their launcher says.
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
        """Seconds of a step with deterministic algorithms, and where torch may use any; the better of two each."""
        times: dict[bool, list[float]] = {True: [], False: []}
        for on in (False, True, False, True):
            use_deterministic(on)
            times[on].append(self.run(compiled=False).work)
        return min(times[True]), min(times[False])

    def compile(self, eager: StepTime, log: Log) -> StepTime | None:
        """Compile, and time it; None where auto tried in vain. The same process then trains with the code made here."""
        use_deterministic(is_deterministic(self.config.training, self.device, compiled=True))
        path = record_path(self.config, self.steps[0][0], self.device)
        asked, peers = self.config.training.compile is True, self.parallel.peers
        try:
            found = self.run(compiled=True)
        except Exception as error:  # whatever a compiler may raise: without it things are only slower
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
    """Processes that make batches, where this one would wait for them. A GPU's own thread hides what takes no longer
    than the step; on a CPU only cores help that training itself leaves free."""
    free = cores - (1 if device.type == "cuda" else threads)
    hidden = found.work if device.type == "cuda" else SLIGHT * found.work
    if found.fetch <= max(hidden, HANDOVER) or free < 1:
        return 0
    return min(free, math.ceil(found.fetch / found.work) + (1 if device.type == "cuda" else 0))


def time_evaluation(model: nn.Module, config: Config, data: Prepared) -> float:
    """Seconds that evaluating one validation row takes, by evaluating more and more of them up to a batch: of a few
    rows most is the way to the device, and a first call also pays for what is made once."""
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
    """Seconds that a translator needs to write the texts of the final evaluation, their evaluation left out, by writing
    `most` of them. Fresh weights rarely end a text, so that before the first step this is rather too much.
    """
    side = data.valid if data.test is None else data.test
    if not find(config.task).decodes or side is None or not len(side):
        return 0.0
    size = max(32, config.training.micro_batch_size or 32)
    evaluator = Evaluator(config.objective, data.preprocess, data.tokenizer, batch_size=size)
    count = min(len(side), size, most)
    began = time.perf_counter()
    evaluator(model, side, most=count, decode=True)
    # A batch takes about as long as a few of its rows: one token after the other, all rows at once.
    return max(0.0, time.perf_counter() - began - row * count) * -(-len(side) // size)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

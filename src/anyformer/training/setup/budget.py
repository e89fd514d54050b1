"""Before the first step: how long a step takes and what it needs, by doing a few; how many there will be."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import sizes
from anyformer.data.sizes import Sizes
from anyformer.slots import compiles
from anyformer.tasks import Evaluator, find
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.duration import FINAL, LEAST_ROWS, Budget, Plan
from anyformer.training.loader import Steps
from anyformer.training.settings import Config, Training, batch_stages
from anyformer.training.setup.compile_choice import (
    CompileCost,
    expect_cost,
    explain_choice,
    has_compiler,
    record_path,
    write_cost,
)
from anyformer.training.setup.defaults import EVALUATIONS, MINUTES, default_steps
from anyformer.training.setup.determinism import explain_price, is_deterministic, use_deterministic
from anyformer.training.setup.memory import usage
from anyformer.training.step import TrainingEngine, put

TRIAL = 0.25  # seconds of steps that are timed
TRIAL_SHARE = 0.05  # of a run's time after which no other number of threads is tried
TOGETHER = 5  # steps of a GPU that are timed at once, as in training nobody waits for each of them
JUDGED = 8  # rows judged to see how long an evaluation takes
SHARE = 0.1  # of the time that evaluations may take
ONE = 0.04  # of the time that one evaluation may take; it judges fewer rows where that is not enough
SLIGHT = 0.02  # share of a step below which making its batches is not worth a process

Say = Callable[[str], None]


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
class Measured:
    """What a few steps showed."""

    step: float  # seconds
    row: float  # seconds of judging one row
    memory: int
    limit: int | None
    compiled: bool = False
    workers: int = 0
    pauses: float = 0.0
    decoding: float = 0.0  # seconds of writing the texts of the final evaluation


def measure(
    model: nn.Module, config: Config, data: Prepared, steps: Steps, device: torch.device, kept: dict[str, Tensor],
    parallel: Parallel, say: Say, elapsed: float = 0.0,
) -> Measured:  # fmt: skip
    """Time steps and judging; `kept` are the weights to begin again from. The model is left changed.

    `elapsed` are the seconds of the run that are gone already. Of several processes the first one's clock counts, so
    that all of them do the same.
    """
    settings, began = config.training, time.perf_counter()
    use_deterministic(is_deterministic(settings, device, compiled=settings.compile is True))
    eager = fastest(model, config, steps, device, parallel)
    if settings.deterministic:
        say(explain_price(*compare_deterministic(model, config, steps, device, parallel)))
    workers = settings.workers
    if workers is None:
        workers = choose_workers(eager, device, torch.get_num_threads(), os.cpu_count() or 1)
        if workers:
            say(f"workers  {workers}: the batches of a step take {eager.fetch * 1e3:,.1f} ms to make, the step "
                f"{eager.work * 1e3:,.1f} ms")  # fmt: skip
    step = eager.total(device, workers)
    put(model, kept)
    compiled = settings.compile is True
    if settings.compile == "auto":
        left = seconds_left(config, data, device, step, elapsed + time.perf_counter() - began)
        compiled = parallel.peers.first(lambda: should_compile(config, data, steps, device, left, say))
    if compiled:
        found = compile_step(model, config, steps, device, parallel, eager, say)
        put(model, kept)
        compiled = found is not None
        step = step if found is None else found.total(device, workers)
        use_deterministic(is_deterministic(settings, device, compiled=compiled))
    row = judging(model, config, data) if data.valid is not None else 0.0
    decoding = writing(model, config, data, row) if settings.minutes is not None else 0.0
    memory = usage(str(device))
    return Measured(step, row, memory.peak or 0, memory.limit, compiled, workers, decoding=decoding)


def seconds_left(config: Config, data: Prepared, device: torch.device, step: float, elapsed: float) -> float:
    """Seconds that training will take without compiling: by its steps, and within its time."""
    settings = config.training
    count: float = settings.steps or math.inf
    limit = math.inf if settings.minutes is None else settings.minutes * 60 - elapsed
    if settings.steps is None and settings.minutes is None:
        count = wanted_steps(config, data)
        limit = default_minutes(device) * 60 - elapsed
    return max(0.0, min(count * step, limit))


def should_compile(
    config: Config, data: Prepared, steps: Steps, device: torch.device, left: float, say: Say
) -> bool:  # fmt: skip
    """Whether compiling pays in the `left` seconds that training would take without; says why."""
    if not has_compiler(device):
        say("compile  off: there is no compiler here")
    elif not (config.objective.compiles and compiles(config.model)):
        say("compile  off: a part of this model cannot be compiled")
    elif not find(config.task).has_one_shape(sizes_for(data)) or config.training.batch_size_schedule is not None:
        say("compile  off: batches differ in shape, each would be compiled anew")
    else:
        expected = expect_cost(record_path(config, steps[0][0], device), device)
        say(explain_choice(expected, left))
        return expected.pays(left)
    return False


def compile_step(
    model: nn.Module, config: Config, steps: Steps, device: torch.device, parallel: Parallel, eager: StepTime, say: Say
) -> StepTime | None:
    """Compile, and time it; None where auto tried in vain. The same process then trains with the code made here."""
    use_deterministic(is_deterministic(config.training, device, compiled=True))
    path, asked = record_path(config, steps[0][0], device), config.training.compile is True
    try:
        found = trial(model, config, steps, device, parallel, compiled=True)
    except Exception as error:  # whatever a compiler may raise: without it things are only slower
        if asked or isinstance(error, torch.OutOfMemoryError):
            raise
        say(f"compile  off: it failed ({' '.join(str(error).split())[:120] or type(error).__name__})")
        return None
    cost = CompileCost(max(0.01, found.first - found.work), eager.work / found.work, is_warm=path.is_file())
    write_cost(path, cost)
    say(f"compile  took {cost.seconds:,.1f} s: {found.work * 1e3:,.1f} ms a step, {eager.work * 1e3:,.1f} without")
    return found if asked or cost.gain > 1 else None


def choose_workers(found: StepTime, device: torch.device, threads: int, cores: int) -> int:
    """Processes that make batches, where this one would wait for them. A GPU's own thread hides what takes no longer
    than the step; on a CPU only cores help that training itself leaves free."""
    if device.type == "cuda":
        return 0 if found.fetch < found.work else min(cores - 1, 1 + math.ceil(found.fetch / found.work))
    return 0 if found.fetch < SLIGHT * found.work else min(cores - threads, math.ceil(found.fetch / found.work))


def fastest(model: nn.Module, config: Config, steps: Steps, device: torch.device, parallel: Parallel) -> StepTime:
    """Seconds a step takes with the number of threads that is best here, which is left set.

    A small model gains nothing from many cores, and where another program holds a core, two threads wait for each
    other at every operation and are slower than one. Several processes share the cores as their launcher says.
    """
    if device.type != "cpu" or config.training.threads is not None or not parallel.peers.world.is_alone:
        return trial(model, config, steps, device, parallel, compiled=False)
    most, began = torch.get_num_threads(), time.perf_counter()
    limit = math.inf if config.training.minutes is None else TRIAL_SHARE * 60 * config.training.minutes
    times: dict[int, StepTime] = {}
    for threads in sorted({1, 2, 4, 8, most}, reverse=True):
        if threads <= most and time.perf_counter() - began < limit:
            torch.set_num_threads(threads)
            times[threads] = trial(model, config, steps, device, parallel, compiled=False, warm=not times)
    best = min(times, key=lambda threads: times[threads].work)
    torch.set_num_threads(best)
    return times[best]


def compare_deterministic(
    model: nn.Module, config: Config, steps: Steps, device: torch.device, parallel: Parallel
) -> tuple[float, float]:
    """Seconds of a step with deterministic algorithms, and where torch may use any; each the better of two trials."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for on in (False, True, False, True):
        use_deterministic(on)
        times[on].append(trial(model, config, steps, device, parallel, compiled=False).work)
    return min(times[True]), min(times[False])


def trial(
    model: nn.Module, config: Config, steps: Steps, device: torch.device, parallel: Parallel, *, compiled: bool,
    warm: bool = True,
) -> StepTime:  # fmt: skip
    """Seconds a step takes here; the first one, which loads, allocates and compiles, is timed apart."""
    engine = TrainingEngine(
        model, config.objective, config.training.replace(steps=None, epochs=None, minutes=None), Plan(10**6), parallel
    )
    if compiled:
        engine.compile()
    gpu, number, first = device.type == "cuda", 0, 0.0
    for _ in range((TOGETHER if gpu else 1) if warm else 0):
        began = time.perf_counter()
        engine.step(number, steps[number])
        wait(device)
        first, number = max(first, time.perf_counter() - began), number + 1
    began, fetch, count, spent = time.perf_counter(), 0.0, 0, 0.0
    while not count or (spent < TRIAL and count < 50):
        for _ in range(TOGETHER if gpu else 1):
            asked = time.perf_counter()
            micros = steps[number]
            fetch += time.perf_counter() - asked
            engine.step(number, micros)
            count, number = count + 1, number + 1
        wait(device)
        spent = parallel.peers.first(lambda: time.perf_counter() - began)
    engine.release()
    return StepTime(*parallel.peers.first(lambda: [(spent - fetch) / count, fetch / count, first]))


def judging(model: nn.Module, config: Config, data: Prepared) -> float:
    """Seconds that judging one validation row takes."""
    assert data.valid is not None
    micro = config.training.micro_batch_size or 32
    evaluator = Evaluator(config.objective, data.preprocess, data.tokenizer, batch=max(32, micro))
    count = min(len(data.valid), JUDGED)
    began = time.perf_counter()
    evaluator(model, data.valid, most=count, decode=False)
    return (time.perf_counter() - began) / max(1, count)


def writing(model: nn.Module, config: Config, data: Prepared, row: float, most: int = JUDGED) -> float:
    """Seconds that a translator needs to write the texts of the final evaluation, judging them left out, by writing
    `most` of them. Fresh weights rarely end a text, so that before the first step this is rather too much.
    """
    side = data.valid if data.test is None else data.test
    if not find(config.task).decodes or side is None or not len(side):
        return 0.0
    size = max(32, config.training.micro_batch_size or 32)
    evaluator = Evaluator(config.objective, data.preprocess, data.tokenizer, batch=size)
    count = min(len(side), size, most)
    began = time.perf_counter()
    evaluator(model, side, most=count, decode=True)
    # A batch takes about as long as a few of its rows: one token after the other, all rows at once.
    return max(0.0, time.perf_counter() - began - row * count) * -(-len(side) // size)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sizes_for(data: Prepared) -> Sizes:
    return Sizes.of(sizes(data.preprocess, data.tokenizer))


def mean_step_size(settings: Training, steps: int = 10_000) -> float:
    """How large steps are on average, as a share of the full batch, by what holds for a run of `steps` steps."""
    stages = [*batch_stages(settings, steps), (steps, 0)] if settings.batch_size_schedule is not None else []
    rows = sum(size * (min(after, steps) - min(first, steps)) for (first, size), (after, _) in pairwise(stages))
    return rows / steps / (settings.batch_size or 1) if stages else 1.0


def wanted_steps(config: Config, data: Prepared) -> int:
    """Steps of a run that nobody limited."""
    batch = config.training.batch_size or 1
    return default_steps(find(config.task), sizes_for(data), len(data.train), batch, start=bool(config.start))


def default_minutes(device: torch.device) -> float:
    """The time of a run that nobody limited."""
    return MINUTES["cpu" if device.type == "cpu" else "gpu"]


def decide_length(
    config: Config, found: Measured, data: Prepared, device: torch.device, elapsed: float
) -> tuple[Training, Budget | None]:
    """Settings with steps, evaluations, saves and compilation fixed; and the time, where that is what limits a run.

    `elapsed` are the seconds of it that are gone already.
    """
    settings = config.training
    judged = min(len(data.valid) if data.valid is not None else 0, settings.eval_rows or 10**12)
    most_rows = find(config.task).max_eval_rows
    sides = [len(side) for side in (data.valid, data.test) if side is not None]
    rows = sum(min(rows, most_rows or rows) for rows in sides)
    whole = found.row * rows
    steps, budget, eval_rows = settings.steps, None, settings.eval_rows
    if steps is None or settings.minutes is not None:
        wanted = steps or wanted_steps(config, data)
        limit = default_minutes(device) if settings.minutes is None else settings.minutes
        most = wanted if settings.minutes is None else steps
        in_time = max(LEAST_ROWS, int(ONE * limit * 60 / max(1e-9, found.row)))
        if in_time < judged:
            judged = eval_rows = in_time
        budget = Budget(
            limit * 60, found.step, evaluation=found.row * judged + 0.05, row=found.row, rows=rows,
            decoding=found.decoding, most=most,
        )  # fmt: skip
        final = min(whole + found.decoding, FINAL * budget.seconds)
        # Steps with small batches take a part of the time: how much on average does not depend on their number.
        mean_size = mean_step_size(settings)
        fit = max(2, int((budget.seconds * (1 - SHARE) - final - budget.closing - elapsed) / (found.step * mean_size)))
        steps = fit if most is None else min(most, fit)
    # Evaluations take at most a share of the time, however slow they are.
    evaluation = found.row * judged + 0.05
    most = max(1, min(EVALUATIONS, int(SHARE * steps * found.step / evaluation)))
    every = settings.eval_every or max(1, -(-steps // most))
    found.pauses = steps / every * evaluation + whole + found.decoding
    schedule = settings.batch_size_schedule
    settled = settings.replace(
        batch_size_schedule=None if schedule is None else schedule.resolve(steps),
        steps=steps, minutes=None, eval_every=every, save_every=settings.save_every or every,
        eval_rows=eval_rows, compile=found.compiled, workers=found.workers, threads=torch.get_num_threads(),
    )  # fmt: skip
    return settled, budget

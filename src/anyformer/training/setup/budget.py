"""Before the first step: how long a step takes and what it needs, by doing a few; how many there will be."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import sizes
from anyformer.data.sizes import Sizes
from anyformer.slots import compiles
from anyformer.tasks import Evaluator, find
from anyformer.training.duration import FINAL, LEAST_ROWS, Budget, Plan
from anyformer.training.loader import Steps
from anyformer.training.settings import Config, Training
from anyformer.training.setup.defaults import EVALUATIONS, MINUTES, default_steps
from anyformer.training.setup.memory import usage
from anyformer.training.step import TrainingEngine, put

LONG = 240.0  # seconds of eager training from which compiling pays on a CPU, where it takes half a minute
TRIAL = 0.25  # seconds of steps that are timed
JUDGED = 8  # rows judged to see how long an evaluation takes
SHARE = 0.1  # of the time that evaluations may take
ONE = 0.04  # of the time that one evaluation may take; it judges fewer rows where that is not enough


@dataclass
class Measured:
    """What a few steps showed."""

    step: float  # seconds
    row: float  # seconds of judging one row
    memory: int
    limit: int | None
    compiled: bool = False
    why_compile: str = ""
    pauses: float = 0.0
    decoding: float = 0.0  # seconds of writing the texts of the final evaluation


def measure(
    model: nn.Module, config: Config, data: Prepared, steps: Steps, device: torch.device, kept: dict[str, Tensor]
) -> Measured:
    """Time steps and judging; `kept` are the weights to begin again from. The model is left changed."""
    settings = config.training
    seconds = fastest(model, config, steps, device)
    put(model, kept)
    why = ""
    if settings.compile == "auto":
        rows = len(data.train)
        sizes = sizes_for(data)
        limit = math.inf if settings.minutes is None else settings.minutes * 60
        count: float = settings.steps or math.inf
        if settings.steps is None and settings.minutes is None:
            count = default_steps(find(config.task), sizes, rows, settings.batch_size or 1, start=bool(config.start))
        planned = min(count * seconds, limit)
        fixed = config.objective.compiles and find(config.task).has_one_shape(sizes)  # one compilation is enough
        if planned > LONG and fixed and compiles(config.model) and compiler(device):
            why = f"about {planned / 60:.0f} minutes without"
    compiled = settings.compile is True or bool(why)
    if compiled and settings.minutes is not None:
        seconds = trial(model, config, steps, device, compiled=True)
        put(model, kept)
    row = judging(model, config, data) if data.valid is not None else 0.0
    decoding = writing(model, config, data, row) if settings.minutes is not None else 0.0
    found = usage(str(device))
    return Measured(seconds, row, found.peak or 0, found.limit, compiled, why, decoding=decoding)


def fastest(model: nn.Module, config: Config, steps: Steps, device: torch.device) -> float:
    """Seconds a step takes with the number of threads that is best here, which is left set.

    A small model gains nothing from many cores, and where another program holds a core, two threads wait for each
    other at every operation and are slower than one.
    """
    if device.type != "cpu" or config.training.threads is not None:
        return trial(model, config, steps, device, compiled=False)
    most = torch.get_num_threads()
    times: dict[int, float] = {}
    for threads in sorted({1, 2, 4, 8, most}, reverse=True):
        if threads <= most:
            torch.set_num_threads(threads)
            times[threads] = trial(model, config, steps, device, compiled=False, warm=not times)
    best = min(times, key=times.__getitem__)
    torch.set_num_threads(best)
    return times[best]


def trial(
    model: nn.Module, config: Config, steps: Steps, device: torch.device, *, compiled: bool, warm: bool = True
) -> float:
    """Seconds a step takes here; the very first one, which loads and allocates, is left out."""
    engine = TrainingEngine(
        model, config.objective, config.training.replace(steps=None, epochs=None, minutes=None), Plan(10**6)
    )
    if compiled:
        engine.compile()
    if warm:
        engine.step(0, steps[0])
    wait(device)
    began, count = time.perf_counter(), 0
    while count < 1 or (time.perf_counter() - began < TRIAL and count < 50):
        engine.step(count + 1, steps[count + 1])
        wait(device)
        count += 1
    return (time.perf_counter() - began) / count


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


def compiler(device: torch.device) -> bool:
    """Whether torch can make kernels here: a C++ compiler for a CPU, triton for a GPU."""
    if device.type == "cpu":
        return any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    from importlib.util import find_spec

    return device.type == "cuda" and find_spec("triton") is not None


def sizes_for(data: Prepared) -> Sizes:
    return Sizes.of(sizes(data.preprocess, data.tokenizer))


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
        wanted = steps or default_steps(
            find(config.task), sizes_for(data), len(data.train), settings.batch_size or 1, start=bool(config.start)
        )
        limit = MINUTES["cpu" if device.type == "cpu" else "gpu"] if settings.minutes is None else settings.minutes
        most = wanted if settings.minutes is None else steps
        in_time = max(LEAST_ROWS, int(ONE * limit * 60 / max(1e-9, found.row)))
        if in_time < judged:
            judged = eval_rows = in_time
        budget = Budget(
            limit * 60, found.step, evaluation=found.row * judged + 0.05, row=found.row, rows=rows,
            decoding=found.decoding, most=most,
        )  # fmt: skip
        final = min(whole + found.decoding, FINAL * budget.seconds)
        fit = max(2, int((budget.seconds * (1 - SHARE) - final - budget.closing - elapsed) / found.step))
        steps = fit if most is None else min(most, fit)
    # Evaluations take at most a share of the time, however slow they are.
    evaluation = found.row * judged + 0.05
    most = max(1, min(EVALUATIONS, int(SHARE * steps * found.step / evaluation)))
    every = settings.eval_every or max(1, -(-steps // most))
    found.pauses = steps / every * evaluation + whole + found.decoding
    settled = settings.replace(
        steps=steps, minutes=None, eval_every=every, save_every=settings.save_every or every,
        eval_rows=eval_rows, compile=found.compiled, threads=torch.get_num_threads(),
    )  # fmt: skip
    return settled, budget

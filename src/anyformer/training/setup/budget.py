"""Before the first step: measure the time and memory of a step by trial, and decide the number of steps."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from anyformer.data.prepared import Prepared
from anyformer.data.preprocess import sizes
from anyformer.data.sizes import Sizes
from anyformer.kernels import onednn
from anyformer.log import Log
from anyformer.slots import compiles
from anyformer.tasks import find
from anyformer.training.distributed.parallel import Parallel
from anyformer.training.duration import FINAL, LEAST_ROWS, Budget
from anyformer.training.loader import Steps
from anyformer.training.settings import Config, Training, batch_stages
from anyformer.training.setup.compile_choice import expect_cost, explain_choice, has_compiler, record_path
from anyformer.training.setup.defaults import EVALUATIONS, MINUTES, MOST_EVALUATIONS, default_steps
from anyformer.training.setup.determinism import explain_price, is_deterministic, use_deterministic
from anyformer.training.setup.memory import usage
from anyformer.training.setup.trial import Trial, choose_workers, time_evaluation, time_writing
from anyformer.training.step import put

SHARE = 0.1  # fraction of the budget that evaluations may take
LEAST = 5  # evaluations per run, each within the limit of ONE: a single one could not select a checkpoint
SHORT = 20.0  # seconds of training below which evaluations may take a larger fraction
ONE = 0.04  # most of the budget for one evaluation; rows are reduced to fit


@dataclass
class TrialTimes:
    """Measurements of the trial steps."""

    step: float  # seconds
    row: float  # seconds to evaluate one row
    memory: int
    limit: int | None
    compiled: bool = False
    workers: int = 0
    pauses: float = 0.0
    decoding: float = 0.0  # seconds to generate the texts of the final evaluation


def measure(
    model: nn.Module, config: Config, data: Prepared, steps: Steps, device: torch.device, kept: dict[str, Tensor],
    parallel: Parallel, log: Log, elapsed: float = 0.0,
) -> TrialTimes:  # fmt: skip
    """Time steps and evaluations; `kept` are the weights restored between trials. The model is left modified.

    `elapsed` is how many seconds of the run have passed already.
    """
    settings, began = config.training, time.perf_counter()
    trial = Trial(model, config, steps, device, parallel)
    use_deterministic(is_deterministic(settings, device, compiled=settings.compile is True))
    eager = trial.fastest()
    if settings.deterministic:
        log(explain_price(*trial.compare_deterministic()))
    workers = settings.workers
    if workers is None:
        cores = (os.cpu_count() or 1) // parallel.peers.world.size  # a lower bound on several hosts
        workers = choose_workers(eager, device, torch.get_num_threads(), cores)
        if workers:
            log(f"workers  {workers}: the batches of a step take {eager.fetch * 1e3:,.1f} ms to make, the step "
                f"{eager.work * 1e3:,.1f} ms")  # fmt: skip
    step = eager.total(device, workers)
    put(model, kept)
    compiled = settings.compile is True
    if settings.compile == "auto":
        left = seconds_left(config, data, device, step, elapsed + time.perf_counter() - began)
        compiled = parallel.peers.broadcast(lambda: should_compile(config, data, steps, device, left, log))
    if compiled:
        found = trial.compile(eager, log)
        put(model, kept)
        compiled = found is not None
        step = step if found is None else found.total(device, workers)
        use_deterministic(is_deterministic(settings, device, compiled=compiled))
    row = time_evaluation(model, config, data) if data.valid is not None else 0.0
    decoding = time_writing(model, config, data, row) if settings.minutes is not None else 0.0
    memory = usage(str(device))
    return TrialTimes(step, row, memory.peak or 0, memory.limit, compiled, workers, decoding=decoding)


def seconds_left(config: Config, data: Prepared, device: torch.device, step: float, elapsed: float) -> float:
    """Expected seconds of training without compiling, within the time budget."""
    settings = config.training
    count: float = settings.steps or math.inf
    limit = math.inf if settings.minutes is None else settings.minutes * 60 - elapsed
    if settings.steps is None and settings.minutes is None:
        count = wanted_steps(config, data)
        limit = default_minutes(device) * 60 - elapsed
    return max(0.0, min(count * step, limit))


def should_compile(
    config: Config, data: Prepared, steps: Steps, device: torch.device, left: float, log: Log
) -> bool:  # fmt: skip
    """Whether compiling pays off in the `left` seconds that training would take without it; logs why."""
    if not has_compiler(device):
        log("compile  off: no compiler found")
    elif device.type == "cpu" and onednn.is_faster():
        log("compile  off: on this processor steps are as fast without (docs/benchmarks.md, On a CPU)")
    elif not (config.objective.compiles and compiles(config.model)):
        log("compile  off: a part of this model cannot be compiled")
    elif config.training.unfreeze is not None:
        log("compile  off: training.unfreeze would recompile the model at each stage")
    elif not find(config.task).has_one_shape(sizes_for(data)) or config.training.batch_size_schedule is not None:
        log("compile  off: batches differ in shape, each would be recompiled")
    else:
        expected = expect_cost(record_path(config, steps[0][0], device), device)
        log(explain_choice(expected, left))
        return expected.pays(left)
    return False


def sizes_for(data: Prepared) -> Sizes:
    return Sizes.of(sizes(data.preprocess, data.tokenizer) | {"rows": len(data.train)})


def mean_step_size(settings: Training, steps: int = 10_000) -> float:
    """Mean step size as a fraction of the full batch, in a run of `steps` steps."""
    stages = [*batch_stages(settings, steps), (steps, 0)] if settings.batch_size_schedule is not None else []
    rows = sum(size * (min(after, steps) - min(first, steps)) for (first, size), (after, _) in pairwise(stages))
    return rows / steps / (settings.batch_size or 1) if stages else 1.0


def wanted_steps(config: Config, data: Prepared) -> int:
    """Default number of steps."""
    batch = config.training.batch_size or 1
    return default_steps(find(config.task), sizes_for(data), len(data.train), batch, start=bool(config.start))


def default_minutes(device: torch.device) -> float:
    """Default time limit in minutes."""
    return MINUTES["cpu" if device.type == "cpu" else "gpu"]


def decide_length(
    config: Config, found: TrialTimes, data: Prepared, device: torch.device, elapsed: float
) -> tuple[Training, Budget | None]:
    """Resolve steps, evaluations, saves and compilation; also returns the time budget, if time limits the run.

    `elapsed` is how many seconds of it have passed already.
    """
    settings = config.training
    evaluated = min(len(data.valid) if data.valid is not None else 0, settings.eval_rows or 10**12)
    most_rows = find(config.task).max_eval_rows
    sides = [len(side) for side in (data.valid, data.test) if side is not None]
    rows = sum(min(rows, most_rows or rows) for rows in sides)
    whole = found.row * rows
    steps, budget, eval_rows = settings.steps, None, settings.eval_rows
    if steps is None or settings.minutes is not None:
        wanted = steps or wanted_steps(config, data)
        limit = default_minutes(device) if settings.minutes is None else settings.minutes
        # More epochs than the data needs would only overfit: the time is a limit, not a target.
        uses_time = settings.minutes is not None and find(config.task).draws_anew
        most = steps if uses_time else wanted
        in_time = max(LEAST_ROWS, int(ONE * limit * 60 / max(1e-9, found.row)))
        if in_time < evaluated:
            evaluated = eval_rows = in_time
        budget = Budget(
            limit * 60, found.step, evaluation=found.row * evaluated + 0.05, row=found.row, rows=rows,
            decoding=found.decoding, most=most, learning=find(config.task).baseline_seconds(data.train),
        )  # fmt: skip
        final = min(whole + found.decoding, FINAL * budget.seconds)
        # Small-batch steps take less time: their mean size does not depend on the number of steps.
        mean_size = mean_step_size(settings)
        fit = max(2, int((budget.seconds * (1 - SHARE) - final - budget.closing - elapsed) / (found.step * mean_size)))
        steps = fit if most is None else min(most, fit)
    # Evaluations take at most SHARE of the time, unless they are so slow that there would be hardly any.
    evaluation = found.row * evaluated + 0.05
    # One per epoch if there are many: small data overfits within a few epochs, and the best must not be missed.
    passes = steps * (settings.batch_size or 1) / max(1, len(data.train))
    wanted_evaluations = int(min(MOST_EVALUATIONS, max(EVALUATIONS, passes)))
    most = max(LEAST, min(wanted_evaluations, int(SHARE * max(SHORT, steps * found.step) / evaluation)))
    every = settings.eval_every or max(1, -(-steps // most))
    found.pauses = steps / every * evaluation + whole + found.decoding
    schedule = settings.batch_size_schedule
    settled = settings.replace(
        batch_size_schedule=None if schedule is None else schedule.resolve(steps),
        steps=steps, minutes=None, eval_every=every, save_every=settings.save_every or every,
        eval_rows=eval_rows, compile=found.compiled, workers=found.workers, threads=torch.get_num_threads(),
    )  # fmt: skip
    return settled, budget

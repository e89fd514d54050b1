"""The number of steps of a run, and how it is kept within the time budget.

The number of steps is planned before the first one and corrected when the measured throughput differs from the trial's
(another job on the machine started or ended). Every correction is saved before the step that it affects, so that the lr
is a pure function of the step and the saved plan, and a resumed run repeats the same decisions.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from anyformer.training.schedule import Schedule

PLAN_FILE = "plan.json"
TOLERANCE = 0.02  # fraction of the budget by which the expected end may miss it before the plan is corrected
WINDOW = 0.05  # fraction of the budget over which throughput is averaged
FINAL = 0.25  # most of the budget that the final evaluation may use; rows beyond it are not evaluated
CLOSING = 0.04  # fraction of the budget for baselines and the report
LEARNING = 0.08  # most of the budget for these, where a strong baseline is trained on many rows
CLOSING_SECONDS = 1.5  # fixed cost of these in seconds: imports, the report, process exit
USED_UP = 0.75  # restart the schedule if less than this share of what should be left of it is left
GRACE = 0.03  # fraction of the budget that the final evaluation may always use, even if the steps ended late
MARGIN = 1.2  # safety factor on the expected evaluation time before rows are left out
LEAST_ROWS = 64  # rows that the final evaluation always takes


Sizes = Sequence[tuple[int, float]]  # (first step, step size as a fraction of the full batch)
WHOLE: Sizes = [(0, 1.0)]


@dataclass(frozen=True)
class Correction:
    """After `step` steps, the total number of steps becomes `steps`."""

    step: int
    steps: int
    seconds: float = 0.0  # elapsed when it was made
    place: float | None = None  # position on a new schedule of `steps` steps; None: keep the current schedule


@dataclass
class Plan:
    """The number of steps, and the position of each on the lr schedule.

    A correction stretches the rest of the schedule evenly over the remaining steps, so the lr does not jump. Only if
    far too few steps were planned, so that far too much of the schedule is used up, does a correction start a new
    schedule, at the position given by the elapsed time.

    >>> plan = Plan(100)
    >>> plan.correct(Correction(50, 150))
    >>> plan.total(49), plan.total(50), plan.place(50), plan.place(100)
    (100, 150, 50.0, 75.0)
    """

    steps: int
    corrections: list[Correction] = field(default_factory=list)

    @classmethod
    def of(cls, steps: int, facts: Mapping[str, Any]) -> Plan:
        """The plan of a run of `steps` steps, with the corrections in its plan.json."""
        return cls(steps, [Correction(**one) for one in facts.get("corrections") or ()])

    def correct(self, correction: Correction) -> None:
        self.corrections.append(correction)

    def total(self, step: int) -> int:
        """The total number of steps, as planned when `step` of them are done."""
        return next((c.steps for c in reversed(self.corrections) if c.step <= step), self.steps)

    def place(self, step: int) -> float:
        """Position of this step on its schedule; the step itself if there were no corrections."""
        return self.position(step)[0]

    def position(self, step: int) -> tuple[float, int]:
        """Position of this step on its schedule, and the length of that schedule."""
        since, at, total, length = 0, 0.0, self.steps, self.steps
        for correction in self.corrections:
            if correction.step > step:
                break
            at += (correction.step - since) * (length - at) / max(1, total - since)
            since, total = correction.step, correction.steps
            if correction.place is not None:
                at, length = correction.place, total
        return at + (step - since) * ((length - at) / max(1, total - since)), length

    def factor(self, schedule: Schedule, step: int) -> float:
        """The lr factor at a step."""
        return schedule.factor(*self.position(step)) if self.corrections else schedule.factor(step, self.steps)


class RunClock:
    """Seconds of a run in all its processes, of which this one began at `started` (`time.perf_counter`)."""

    def __init__(self, started: float | None = None) -> None:
        self.started = time.perf_counter() if started is None else started
        self.earlier = 0.0  # of earlier processes

    def elapsed(self) -> float:
        return self.earlier + time.perf_counter() - self.started

    def facts(self) -> dict[str, Any]:
        """As run.json holds them."""
        return {"seconds": round(self.elapsed(), 1)}


class Throughput:
    """Recent durations of steps and evaluations in this process."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.steps, self.seconds = 0.0, 0.0  # exponentially decayed sums
        self.observed = 0.0
        self.calls = 0
        self.pauses: deque[float] = deque(maxlen=3)  # seconds of each evaluation with its saves
        self.row: float | None = None  # seconds to evaluate one row
        self.decoding: float | None = None  # seconds to generate the texts of the final evaluation

    def stepped(self, count: float, seconds: float) -> None:
        """Record that `count` full steps took `seconds`; the first call, which includes warm-up, is discarded."""
        self.calls += 1
        if self.calls == 2:
            self.steps, self.seconds, self.observed = 0.0, 0.0, 0.0
        self.observed += seconds
        fade = math.exp(-seconds / self.window)
        self.steps, self.seconds = fade * self.steps + count, fade * self.seconds + seconds

    def evaluated(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def evaluated_rows(self, rows: int, seconds: float) -> None:
        self.row = seconds / max(1, rows)

    def saved(self, seconds: float) -> None:
        self.pauses.append((self.pauses.pop() if self.pauses else 0.0) + seconds)

    @property
    def step(self) -> float | None:
        """Seconds per step with a full batch."""
        return self.seconds / self.steps if self.steps else None


def mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None


def size_at(sizes: Sizes, step: int) -> float:
    """Size of a step as a fraction of the full batch."""
    return next(size for first, size in reversed(sizes) if first <= step)


def steps_in_time(seconds: float, whole: float, pause: float, sizes: Sizes) -> int:
    """How many steps from step 0 fit into `seconds`: a full one takes `whole`, plus `pause` per step.

    >>> steps_in_time(10.0, 1.0, 0.0, WHOLE), steps_in_time(10.0, 1.0, 0.0, [(0, 0.25), (8, 0.5), (12, 1.0)])
    (10, 18)
    """
    done = 0
    for number, (_, size) in enumerate(sizes):
        last = sizes[number + 1][0] if number + 1 < len(sizes) else math.inf
        fit = max(0, int(seconds / (whole * size + pause)))
        if done + fit <= last:
            return done + fit
        count = max(0, int(last) - done)
        done, seconds = done + count, seconds - count * (whole * size + pause)
    raise AssertionError("the last size has no end")


@dataclass(frozen=True)
class Budget:
    """A run's time budget and the durations measured by the trial before its first step, in seconds."""

    seconds: float
    step: float
    evaluation: float  # one evaluation during training
    row: float  # to evaluate one row
    rows: int  # of the final evaluation
    decoding: float = 0.0  # to generate its texts
    most: int | None = None  # upper limit on steps, even if time is left
    learning: float = 0.0  # to train the strong baseline on all training rows

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Budget | None:
        """The budget in a run's plan.json, if any."""
        found = facts.get("budget")
        return None if found is None else cls(**found)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def closing(self) -> float:
        """Seconds reserved for baselines and the report."""
        return CLOSING_SECONDS + min(max(CLOSING * self.seconds, self.learning), LEARNING * self.seconds)

    def slowdown(self, pace: Throughput) -> float:
        """Current step time relative to the trial; other work is assumed to have slowed down equally."""
        return 1.0 if pace.step is None else pace.step / max(1e-9, self.step)

    def corrected(
        self, plan: Plan, done: int, elapsed: float, pace: Throughput, every: int, sizes: Sizes = WHOLE
    ) -> Correction | None:
        """The correction needed after `done` steps; None if the plan still fits the budget.

        `every` is the number of steps between evaluations, `sizes` the step sizes. If all planned steps are done and
        time is left, the plan grows, however uncertain the throughput.
        """
        total, slack = plan.total(done), TOLERANCE * self.seconds
        if elapsed >= self.seconds:
            return Correction(done, done, round(elapsed, 1)) if done < total else None
        since = elapsed - plan.corrections[-1].seconds if plan.corrections else elapsed
        early = 0 <= since < slack or (pace.observed < slack and done < total / 10)
        if pace.step is None or (early and done < total):
            return None
        slower = self.slowdown(pace)
        pause = mean(pace.pauses)
        pause = self.evaluation * slower if pause is None else pause
        final = self.rows * (self.row * slower if pace.row is None else pace.row)
        final += self.decoding * slower if pace.decoding is None else pace.decoding
        each = pace.step * size_at(sizes, done) + pause / every
        left = self.seconds - elapsed - pause - min(final, FINAL * self.seconds) - self.closing
        fit = done + steps_in_time(left, pace.step, pause / every, [(first - done, size) for first, size in sizes])
        fit = fit if self.most is None else min(fit, max(done, self.most))
        if abs(fit - total) * each <= slack:
            return None
        place, length = plan.position(done)
        due = elapsed / (elapsed + (fit - done) * each)  # share of the schedule
        used_up = 1 - place / length < USED_UP * (1 - due)
        return Correction(done, fit, round(elapsed, 1), place=due * fit if used_up else None)

    def rows_in_time(self, elapsed: float, rows: int, row: float, after: float = 0.0) -> int:
        """How many of `rows` rows can be evaluated within the budget, at `row` seconds each and with `after` seconds
        of later evaluation still to come."""
        left = max(self.seconds - elapsed - self.closing, GRACE * self.seconds)
        needed = MARGIN * (rows * row + after)
        # If time is short, later evaluation gets a larger share: throughput may drop, and test rows matter most.
        share = 1.0 if needed <= left else left / (needed + MARGIN * after)
        return min(rows, max(LEAST_ROWS, int(rows * share)))

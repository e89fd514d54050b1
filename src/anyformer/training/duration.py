"""How many steps a run has, and how they are kept within its minutes.

The number of steps is planned before the first one and corrected while the clock shows another pace than the trial
did: a neighbour came or went. Every correction is written down before the step that it changes, so that an lr is a
pure function of the step and of what is written, and a resumed run repeats what was decided.
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
TOLERANCE = 0.02  # share of the time by which the expected end may miss it before the plan is corrected
WINDOW = 0.05  # share of the time over which the pace of steps is averaged
FINAL = 0.25  # share of the time that the final evaluation may claim at most; rows beyond it are not evaluated
CLOSING = 0.04  # share of the time for what follows it: baselines and the report
LEARNING = 0.08  # share that these may have at most, where a strong baseline has many rows to learn from
CLOSING_SECONDS = 1.5  # and seconds that these take whatever the time: imports, the page, the end of the process
USED_UP = 0.75  # a schedule with less left than this share of what the clock says begins anew
GRACE = 0.03  # share of the time that the final evaluation may always take, also where the steps ended late
MARGIN = 1.2  # times the seconds that evaluating is expected to take, before rows are left out
LEAST_ROWS = 64  # rows that a final evaluation takes however little time is left


Sizes = Sequence[tuple[int, float]]  # from which step on how large steps are, in full batches
WHOLE: Sizes = [(0, 1.0)]


@dataclass(frozen=True)
class Correction:
    """From the step after `step` on, the run has `steps` steps in all."""

    step: int
    steps: int
    seconds: float = 0.0  # of the run when it was made, for people
    place: float | None = None  # where it goes on, on a new schedule of `steps` steps; None: on the one it has


@dataclass
class Plan:
    """The number of steps, and where on its schedule each of them stands.

    A correction bends the way through the schedule and leaves no jump: what is left of the schedule is spread evenly
    over the steps that are left. Only where far too much of it has been used up, because far too few steps were
    planned, a correction begins a new schedule, at the place that the clock says.

    >>> plan = Plan(100)
    >>> plan.correct(Correction(50, 150))
    >>> plan.total(49), plan.total(50), plan.place(50), plan.place(100)
    (100, 150, 50.0, 75.0)
    """

    steps: int
    corrections: list[Correction] = field(default_factory=list)

    @classmethod
    def of(cls, steps: int, facts: Mapping[str, Any]) -> Plan:
        """The plan of a run of `steps` steps, with the corrections that its plan.json holds."""
        return cls(steps, [Correction(**one) for one in facts.get("corrections") or ()])

    def correct(self, correction: Correction) -> None:
        self.corrections.append(correction)

    def total(self, step: int) -> int:
        """The steps of the whole run, as known when `step` of them are done."""
        return next((c.steps for c in reversed(self.corrections) if c.step <= step), self.steps)

    def place(self, step: int) -> float:
        """Where this step stands on its schedule; the step itself where nothing was corrected."""
        return self.position(step)[0]

    def position(self, step: int) -> tuple[float, int]:
        """Where this step stands on a schedule, and how many steps that schedule has."""
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
        """The share of the full learning rate at a step."""
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
    """How long steps and evaluations take in this process, as the clock showed lately."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.steps, self.seconds = 0.0, 0.0  # lately: earlier ones weigh less and less
        self.observed = 0.0
        self.calls = 0
        self.pauses: deque[float] = deque(maxlen=3)  # an evaluation and the saves up to the next one
        self.row: float | None = None  # seconds of evaluating one row
        self.decoding: float | None = None  # seconds of writing the texts of the final evaluation

    def stepped(self, count: float, seconds: float) -> None:
        """So many full steps took so many seconds; the first ones, which also fill caches, are forgotten soon."""
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
        """Seconds of a step with a full batch."""
        return self.seconds / self.steps if self.steps else None


def mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None


def size_at(sizes: Sizes, step: int) -> float:
    """How large a step is, in full batches."""
    return next(size for first, size in reversed(sizes) if first <= step)


def steps_in_time(seconds: float, whole: float, pause: float, sizes: Sizes) -> int:
    """How many steps take so many seconds, from step 0 on: a full one takes `whole`, and `pause` comes with each.

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
    """The time that a run may take, and what the trial before its first step said about it, in seconds."""

    seconds: float
    step: float
    evaluation: float  # one of those between steps
    row: float  # evaluating one row
    rows: int  # of the evaluation after the last step
    decoding: float = 0.0  # writing texts for it
    most: int | None = None  # steps that are enough, however much time is left
    learning: float = 0.0  # the strong baseline on all training rows

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Budget | None:
        """The budget in a run's plan.json, where it has one."""
        found = facts.get("budget")
        return None if found is None else cls(**found)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def closing(self) -> float:
        """Seconds set aside for baselines and the report."""
        return CLOSING_SECONDS + min(max(CLOSING * self.seconds, self.learning), LEARNING * self.seconds)

    def slowdown(self, pace: Throughput) -> float:
        """How many times as long as in the trial a step takes now; other work is taken to be as much slower."""
        return 1.0 if pace.step is None else pace.step / max(1e-9, self.step)

    def corrected(
        self, plan: Plan, done: int, elapsed: float, pace: Throughput, every: int, sizes: Sizes = WHOLE
    ) -> Correction | None:
        """The correction that the clock asks for when `done` steps are done; None where the plan is good enough.

        `every` is the number of steps from one evaluation to the next, and `sizes` how large steps are. Where all
        planned steps are done, and there is time for more, the plan grows, however little is known of the pace.
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
        """How many of `rows` rows can be evaluated before the time is up, at `row` seconds each and with `after`
        seconds of evaluation still to come."""
        left = max(self.seconds - elapsed - self.closing, GRACE * self.seconds)
        needed = MARGIN * (rows * row + after)
        # Where it is not enough, what comes later gets more of it: the pace may fall, and test rows count most.
        share = 1.0 if needed <= left else left / (needed + MARGIN * after)
        return min(rows, max(LEAST_ROWS, int(rows * share)))

"""How many steps a run has, and how they are kept within its minutes.

The number of steps is planned before the first one and corrected while the clock shows another pace than the trial
did: a neighbour came or went. Every correction is written down before the step that it changes, so that a rate is a
pure function of the step and of what is written, and a resumed run repeats what was decided.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from anyformer.training.schedule import Schedule

PLAN_FILE = "plan.json"
TOLERANCE = 0.02  # share of the time by which the expected end may miss it before the plan is corrected
WINDOW = 0.05  # share of the time over which the pace of steps is averaged
FINAL = 0.7  # share of the time that the final evaluation may claim at most
FINISHING = 1.0  # seconds for what follows it: baselines of small data, the report


@dataclass(frozen=True)
class Correction:
    """From the step after `step` on, the run has `steps` steps in all."""

    step: int
    steps: int
    seconds: float = 0.0  # of the run when it was made, for people


@dataclass
class Plan:
    """The number of steps, and where on its schedule each of them stands.

    A correction bends the way through the schedule and leaves no jump: what is left of the schedule is spread evenly
    over the steps that are left.

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
        """Where this step stands on a schedule of `self.steps` steps; the step itself where nothing was corrected."""
        since, at, total = 0, 0.0, self.steps
        for correction in self.corrections:
            if correction.step > step:
                break
            at += (correction.step - since) * (self.steps - at) / max(1, total - since)
            since, total = correction.step, correction.steps
        return at + (step - since) * ((self.steps - at) / max(1, total - since))

    def factor(self, schedule: Schedule, step: int) -> float:
        """The share of the full learning rate at a step."""
        return schedule.factor(self.place(step) if self.corrections else step, self.steps)


class Pace:
    """How long steps and evaluations take in this process, as the clock showed lately."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.steps, self.seconds = 0.0, 0.0  # lately: earlier ones weigh less and less
        self.observed = 0.0
        self.calls = 0
        self.evaluations: deque[float] = deque(maxlen=3)
        self.pauses: deque[float] = deque(maxlen=3)  # an evaluation and the saves up to the next one

    def stepped(self, count: int, seconds: float) -> None:
        """So many steps took so many seconds; the first ones, which also fill caches, are forgotten soon."""
        self.calls += 1
        if self.calls == 2:
            self.steps, self.seconds, self.observed = 0.0, 0.0, 0.0
        self.observed += seconds
        fade = math.exp(-seconds / self.window)
        self.steps, self.seconds = fade * self.steps + count, fade * self.seconds + seconds

    def evaluated(self, seconds: float) -> None:
        self.evaluations.append(seconds)
        self.pauses.append(seconds)

    def saved(self, seconds: float) -> None:
        self.pauses.append((self.pauses.pop() if self.pauses else 0.0) + seconds)

    @property
    def step(self) -> float | None:
        """Seconds of a step."""
        return self.seconds / self.steps if self.steps else None


def mean(values: deque[float]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class Budget:
    """The time that a run may take, and what the trial before its first step said about it, in seconds."""

    seconds: float
    step: float
    evaluation: float  # one of those between steps
    final: float  # the one after the last step, of all rows
    most: int | None = None  # steps that are enough, however much time is left

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Budget | None:
        """The budget in a run's plan.json, where it has one."""
        found = facts.get("budget")
        return None if found is None else cls(**found)

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    def corrected(self, plan: Plan, done: int, elapsed: float, pace: Pace, every: int) -> Correction | None:
        """The correction that the clock asks for when `done` steps are done; None where the plan is good enough.

        `every` is the number of steps from one evaluation to the next.
        """
        total, slack = plan.total(done), TOLERANCE * self.seconds
        if elapsed >= self.seconds:
            return Correction(done, done, round(elapsed, 1))
        since = elapsed - plan.corrections[-1].seconds if plan.corrections else elapsed
        if pace.step is None or 0 <= since < slack or (pace.observed < slack and done < total / 10):
            return None
        # What has not been timed yet is as much slower than in the trial as the steps are.
        slower = pace.step / max(1e-9, self.step)
        evaluation = mean(pace.evaluations)
        pause = mean(pace.pauses)
        pause = self.evaluation * slower if pause is None else pause
        final = self.final * (slower if evaluation is None else evaluation / self.evaluation)
        each = pace.step + pause / every
        left = self.seconds - elapsed - pause - min(final + FINISHING, FINAL * self.seconds)
        fit = done + max(0, int(left / each))
        fit = fit if self.most is None else min(fit, max(done, self.most))
        if abs(fit - total) * each <= slack:
            return None
        return Correction(done, fit, round(elapsed, 1))

"""The progress of a training: written by the loop, read by displays. Nothing here waits for a device."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anyformer.evaluation.metric_directions import Direction
from anyformer.plain_text import printable
from anyformer.training.setup.device_peaks import peak_flops
from anyformer.training.setup.memory import Memory

__all__ = ["Event", "Progress", "Snapshot", "peak_flops"]

Point = tuple[float, float]

RECENT = 50  # calls of `step` that rates are averaged over
POINTS = 2000  # kept of a curve; beyond that every second one is dropped
EVENTS = 2000  # kept for late readers
OUTLIER = 5.0  # a step's time is capped at this many medians: a hiccup is not a trend
SMOOTH = 10.0  # time constant of the smoothed loss, in logged losses


@dataclass(frozen=True)
class Event:
    """An event to be reported once."""

    number: int
    kind: str  # evaluation, sample, note
    step: int
    text: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    keep: bool = False  # printed permanently above the live block
    loss: float | None = None  # smoothed training loss at that moment
    left: float | None = None  # seconds


@dataclass(frozen=True)
class Snapshot:
    """Everything a display needs at one moment. None: not known (yet)."""

    step: int
    total: int | None
    elapsed: float
    unit: str
    metric: str
    title: str
    loss: float | None = None  # as logged last
    smooth: float | None = None
    lr: float | None = None
    grad_norm: float | None = None
    per_second: float | None = None  # units per second of training time, without evaluations
    step_seconds: float | None = None
    wait: float | None = None  # share of the step time spent waiting for data
    left: float | None = None  # seconds
    mfu: float | None = None
    memory: Memory | None = None
    baseline: float | None = None
    split: str = ""
    evaluated_step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    best: tuple[int, float] | None = None
    sample: tuple[int, str] | None = None
    note: str = ""
    doing: str = ""
    training: tuple[Point, ...] = ()
    evaluated: tuple[Point, ...] = ()

    @property
    def done(self) -> bool:
        """Whether the last step has been made."""
        return self.total is not None and self.step >= self.total


class Progress:
    """The progress record of one training; thread-safe.

    `per_step` is the number of `unit`s (tokens, rows) per step; `first` is the step a resumed run starts from. `better`
    ("min" or "max") is the direction of the main metric, to track its best value.

    >>> progress = Progress(100, 512)
    >>> for step in range(10, 60, 10):
    ...     progress.step(step, 2.0, 3.0, 1e-3)
    >>> now = progress.snapshot()
    >>> now.step, now.per_second, now.left
    (50, 2560.0, 10.0)
    """

    def __init__(
        self,
        total: int | None,
        per_step: float,
        *,
        unit: str = "tokens",
        metric: str = "loss",
        better: Direction | None = None,
        baseline: float | None = None,
        flops_per_step: float | None = None,
        peak: float | None = None,
        first: int = 0,
        title: str = "",
        memory: Callable[[], Memory] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.total, self.per_step, self.better = total, per_step, better
        # A watched run names these itself; sanitised here, so that no display has to.
        self.unit, self.metric, self.title = printable(unit), printable(metric), printable(title)
        self.baseline, self.flops_per_step, self.peak = baseline, flops_per_step, peak
        self.first, self.memory, self.clock = first, memory, clock
        self.lock = threading.RLock()
        self.started = clock()
        self.at, self.calls = first, 0
        self.loss: float | None = None
        self.lr: float | None = None
        self.grad_norm: float | None = None
        self.mean, self.weight = 0.0, 0.0
        self.recent: deque[tuple[int, float, float, float]] = deque(maxlen=RECENT)  # steps, seconds, waiting, units
        self.curves: dict[str, list[Point]] = {"training": [], "evaluated": []}
        self.pauses: deque[float] = deque(maxlen=RECENT)
        self.stepped_at: float | None = None
        self.evaluated_steps: deque[int] = deque([first], maxlen=RECENT)
        self.paused = False
        self.metrics: dict[str, float] = {}
        self.evaluated_step: int | None = None
        self.split = ""
        self.best: tuple[int, float] | None = None
        self.last_sample: tuple[int, str] | None = None
        self.last_note, self.now_doing = "", ""
        self.told: deque[Event] = deque(maxlen=EVENTS)
        self.numbered = 0

    # ------------------------------------------------------------------------------------------------ the loop writes

    def step(
        self,
        step: int,
        seconds: float,
        loss: float,
        lr: float | None = None,
        grad_norm: float | None = None,
        wait_seconds: float = 0.0,
        count: float | None = None,
    ) -> None:
        """Steps up to `step` are done; `seconds` and `wait_seconds` are since the last call, without pauses.

        `count` is the number of units in them, if it differs from `per_step` each.
        """
        with self.lock:
            now, steps = self.clock(), max(1, step - self.at)
            if self.paused and self.stepped_at is not None:  # evaluation, and perhaps a save, since the last steps
                self.pauses.append(max(0.0, now - self.stepped_at - seconds))
            if self.calls == 1:
                self.recent.clear()  # the first steps also compiled, filled caches and started workers
            units = self.per_step * steps if count is None else count
            self.recent.append((steps, max(0.0, seconds), max(0.0, wait_seconds), units))
            self.at, self.loss, self.lr, self.grad_norm = step, loss, lr, grad_norm
            self.calls, self.stepped_at, self.paused, self.now_doing = self.calls + 1, now, False, ""
            if math.isfinite(loss):
                keep = 1 - 1 / min(SMOOTH, 1 + self.calls / 5)
                self.mean, self.weight = keep * self.mean + (1 - keep) * loss, keep * self.weight + 1 - keep
                self.add("training", (step, self.mean / self.weight))

    def evaluated(self, step: int, metrics: Mapping[str, float], split: str = "validation") -> None:
        """The metrics of an evaluation after `step`."""
        with self.lock:
            metrics = {printable(name): value for name, value in metrics.items()}
            self.metrics, self.evaluated_step, self.split, self.paused = metrics, step, printable(split), True
            self.now_doing = ""
            self.evaluated_steps.append(step)
            if math.isfinite(metrics.get("loss", math.nan)):
                self.add("evaluated", (step, metrics["loss"]))
            value = metrics.get(self.metric)
            if value is not None and self.better is not None and math.isfinite(value):
                sign = 1 if self.better == "max" else -1
                if self.best is None or sign * value > sign * self.best[1]:
                    self.best = (step, value)
            self.add_event("evaluation", step, metrics=dict(metrics))

    def sample(self, step: int, text: str) -> None:
        """A text sample of the model after `step`."""
        with self.lock:
            self.last_sample = (step, text)
            self.add_event("sample", step, text)

    def note(self, text: str, keep: bool = False) -> None:
        """A text event; `keep` prints it permanently."""
        with self.lock:
            self.last_note = printable(text)
            self.add_event("note", self.at, self.last_note, keep=keep)

    def planned(self, total: int) -> None:
        """Change the total number of steps."""
        with self.lock:
            self.total = total

    def doing(self, text: str) -> None:
        """The current activity other than a step: shown until the next call of `step` or `evaluated`."""
        with self.lock:
            self.now_doing = printable(text)

    # ------------------------------------------------------------------------------------------------ a display reads

    def events(self, after: int = 0) -> list[Event]:
        """Events with a number larger than `after`, oldest first."""
        with self.lock:
            return [event for event in self.told if event.number > after]

    def snapshot(self) -> Snapshot:
        """A copy of everything at this moment."""
        memory = self.memory() if self.memory is not None else None
        with self.lock:
            seconds = self.step_seconds()
            spent = sum(part[1] for part in self.recent)
            units = sum(part[3] for part in self.recent)
            share = sum(part[2] for part in self.recent) / spent if spent else None
            flops = self.flops_per_step
            return Snapshot(
                step=self.at, total=self.total, elapsed=self.clock() - self.started, unit=self.unit,
                metric=self.metric, title=self.title, loss=self.loss,
                smooth=self.mean / self.weight if self.weight else None, lr=self.lr,
                grad_norm=self.grad_norm, per_second=units / spent if spent else None, step_seconds=seconds,
                wait=None if share is None else min(1.0, share), left=self.left(seconds),
                mfu=flops / seconds / self.peak if flops and seconds and self.peak else None, memory=memory,
                baseline=self.baseline, split=self.split, evaluated_step=self.evaluated_step,
                metrics=dict(self.metrics), best=self.best, sample=self.last_sample, note=self.last_note,
                doing=self.now_doing, training=tuple(self.curves["training"]),
                evaluated=tuple(self.curves["evaluated"]),
            )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ inside the lock

    def step_seconds(self) -> float | None:
        """Recent seconds per step, with outliers capped."""
        if not self.recent:
            return None
        bound = OUTLIER * statistics.median(seconds / steps for steps, seconds, _, _ in self.recent)
        return sum(min(seconds, bound * steps) for steps, seconds, _, _ in self.recent) / sum(
            s for s, *_ in self.recent
        )

    def left(self, seconds: float | None) -> float | None:
        """Seconds to the end: steps at their recent speed plus the expected evaluations."""
        if self.total is None or seconds is None:
            return None
        steps = max(0, self.total - self.at)
        pauses = 0.0
        if self.pauses and len(self.evaluated_steps) > 1:
            apart = (self.evaluated_steps[-1] - self.evaluated_steps[0]) / (len(self.evaluated_steps) - 1)
            pauses = statistics.median(self.pauses) * steps / apart if apart > 0 else 0.0
        return steps * seconds + pauses

    def add(self, name: str, point: Point) -> None:
        points = self.curves[name]
        while points and points[-1][0] >= point[0]:  # the loop went back to an earlier step
            points.pop()
        points.append(point)
        if len(points) > POINTS:
            self.curves[name] = points[:-1][::2] + points[-1:]

    def add_event(
        self, kind: str, step: int, text: str = "", metrics: Mapping[str, float] | None = None, keep: bool = False
    ) -> None:
        self.numbered += 1
        loss, left = self.mean / self.weight if self.weight else None, self.left(self.step_seconds())
        self.told.append(Event(self.numbered, kind, step, text, metrics or {}, keep, loss, left))

"""Replays a run folder into a `Progress`, so that the live display also shows a run elsewhere or a finished one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from anyformer.errors import UserError
from anyformer.safe_files import read_text
from anyformer.training.display.progress import Progress
from anyformer.training.run.history import (
    METRICS,
    RUN,
    SPEED,
    Follower,
    History,
    RunRecord,
    figures_of,
    numeric,
    open_run,
)

SAMPLES = "samples"
RATE = "_per_s"  # tokens_per_s, rows_per_s


class Replay:
    """Feeds a `Progress` from a run folder; each call of `read` takes only what is new."""

    def __init__(self, run: RunRecord, clock: Callable[[], float] = time.perf_counter) -> None:
        self.run = run
        self.metrics, self.speed = Follower(run.folder / METRICS), Follower(run.folder / SPEED)
        self.sampled = ""
        self.past = History()
        metric = run.best[0] if run.best else "loss"
        self.progress = Progress(None, 0.0, metric=metric or "loss", title=run.id, clock=clock)
        self.describe()

    def read(self) -> int:
        """Take in what was written since the last call; returns the number of new lines."""
        if (self.run.folder / RUN).exists():
            self.run = open_run(self.run.folder)
        self.describe()
        self.past.add_speed(self.speed.read())
        lines = self.metrics.read()
        for line in lines:
            self.take(line)
        self.take_sample()
        return len(lines)

    def describe(self) -> None:
        """Take the number of steps, the elapsed time and the baseline from run.json."""
        progress = self.progress
        total = self.run.number("total")
        progress.total = None if total is None else int(total)
        progress.baseline = numeric(self.run.facts.get("baseline"))
        seconds = self.run.seconds
        if seconds is not None:
            progress.started = progress.clock() - seconds

    def take_sample(self) -> None:
        """Take the newest text sample, if there is a new one."""
        names = sorted(path.name for path in (self.run.folder / SAMPLES).glob("*.txt"))
        if names and names[-1] != self.sampled:
            self.sampled = names[-1]
            digits = re.search(r"\d+", names[-1])
            try:
                text = read_text(self.run.folder / SAMPLES / names[-1])
            except UserError:
                return
            self.progress.sample(int(digits[0]) if digits else self.progress.at, text)

    def take(self, line: dict[str, Any]) -> None:
        """Take one line of metrics.jsonl."""
        step = int(line["step"])
        if isinstance(line.get("eval"), dict):
            split = str(line["eval"].get("split") or "validation")
            self.progress.evaluated(step, figures_of(line["eval"]), "validation" if split == "valid" else split)
            return
        # A loss may be known before the timing of its step; then the last known timing is used.
        values = figures_of(self.past.speed_of(step)) | figures_of(line)
        if "loss" not in values:
            return
        if step < self.progress.at:
            self.progress.at = 0  # the run went back to an earlier step
        seconds = values.get("seconds", 0.0) * max(1, step - self.progress.at)
        count = None
        for name, value in values.items():
            if name.endswith(RATE):
                self.progress.unit, count = name.removesuffix(RATE), value * seconds
        wait = values.get("wait", 0.0) * seconds
        self.progress.step(step, seconds, values["loss"], values.get("lr"), values.get("grad_norm"), wait, count)

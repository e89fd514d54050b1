"""StepLog: finished steps, read in groups and written to metrics.jsonl, speed.jsonl and the display."""

from __future__ import annotations

import time

from anyformer.training.best import line_of
from anyformer.training.display.progress import Progress
from anyformer.training.duration import Sizes, Throughput, size_at
from anyformer.training.run.folder import METRICS_FILE, RunFolder
from anyformer.training.step import StepResult

SPEED_FILE = "speed.jsonl"


class StepLog:
    """Steps not yet logged. Their losses are read together, since each read synchronizes with the GPU."""

    def __init__(self, folder: RunFolder, progress: Progress, pace: Throughput) -> None:
        self.folder, self.progress, self.pace = folder, progress, pace
        self.pending: list[StepResult] = []
        self.lap = time.perf_counter()
        self.waited = 0.0  # seconds spent waiting for batches since the last log line
        self.paused = 0.0  # seconds spent between steps, in evaluations and saves

    def write(self, done: int, sizes: Sizes) -> None:
        """Read the losses of the pending steps and log them; `sizes` are the step sizes."""
        if not self.pending:
            return
        rows = [line_of(step_result) for step_result in self.pending]
        self.folder.append(METRICS_FILE, rows)
        clock = time.perf_counter()
        seconds, count = max(1e-9, clock - self.lap - self.paused), len(self.pending)
        last = rows[-1]
        full = sum(size_at(sizes, step_result.step - 1) for step_result in self.pending)
        self.pace.stepped(full, seconds)
        units = full * self.progress.per_step
        self.progress.step(done, seconds, last["loss"], last["lr"], last["grad_norm"], self.waited, count=units)
        per_second = units / seconds
        self.folder.append(SPEED_FILE, [{"step": done, "seconds": round(seconds / count, 6),
                                         f"{self.progress.unit}_per_s": round(per_second, 1),
                                         "wait": round(self.waited / seconds, 4)}])  # fmt: skip
        self.lap, self.waited, self.paused = clock, 0.0, 0.0
        self.pending = []

    def write_until(self, step: int) -> None:
        """Log the pending steps up to and including this one, the last; drop those after it."""
        self.folder.append(METRICS_FILE, [line_of(found) for found in self.pending if found.step <= step])
        self.pending = []

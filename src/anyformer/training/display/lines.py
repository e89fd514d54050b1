"""Plain lines for pipes, logs and batch jobs: at each evaluation, at each event, and never silent for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from anyformer.amounts import steady_bytes
from anyformer.errors import Stopped
from anyformer.training.display.format import bare, duration, figure, percent, whole
from anyformer.training.display.progress import Event, Progress, Snapshot
from anyformer.training.display.stream import Safe

SILENCE = 10.0  # seconds without a line, at most
SAMPLE = (8, 100)  # lines of a sample, and characters of each
MOST_SINGLE = 24  # metrics of single outputs that a line holds
GAP = "   "


class LineDisplay:
    """One line every ten seconds or at each event; no control characters but the ends of lines."""

    def __init__(
        self, progress: Progress, stream: Safe, clock: Callable[[], float] = time.monotonic, told: int = 0
    ) -> None:
        self.progress, self.stream, self.clock, self.told = progress, stream, clock, told
        self.begun, self.spoke = False, clock()

    def start(self) -> None:
        """Nothing yet: the first line comes with the first step."""

    def tick(self) -> None:
        """Print new events, or a status line if nothing was printed for a while."""
        now = self.progress.snapshot()
        for event in self.progress.events(self.told):
            self.told = event.number
            self.write_lines(*lines_of(event, now))
        first = not self.begun and now.loss is not None
        if first or self.clock() - self.spoke >= SILENCE:
            self.begun = self.begun or first
            self.write_lines(status(now))

    def finish(self, last: str) -> None:
        """Print the remaining events and the last line."""
        now = self.progress.snapshot()
        for event in self.progress.events(self.told):
            self.told = event.number
            self.write_lines(*lines_of(event, now))
        self.write_lines(last)

    def write_lines(self, *lines: str) -> None:
        self.stream.write("".join(line + "\n" for line in lines))
        self.stream.flush()
        self.spoke = self.clock()


def place(now: Snapshot, step: int) -> str:
    """`step 40 of 2,000`, as wide at the first step as at the last."""
    if now.total is None:
        return f"step {step:,}"
    return f"step {step:>{len(f'{now.total:,}')},} of {now.total:,}"


def status(now: Snapshot) -> str:
    """The status of the training on one line."""
    parts = [place(now, now.step)]
    if now.loss is None:
        parts.append(f"{now.doing or 'the first step is running'}, {duration(now.elapsed)} so far")
        return GAP.join(parts)
    if now.doing:
        parts.append(bare(now.doing).replace("\n", " "))
    parts.append(f"loss {figure(now.loss if now.smooth is None else now.smooth)}")
    if now.lr is not None:
        parts.append(f"lr {now.lr:.1e}")
    if now.per_second is not None:
        parts.append(f"{whole(now.per_second)} {now.unit}/s")
    if now.step_seconds is not None:
        parts.append(f"{whole(1000 * now.step_seconds)} ms/step")
    if now.mfu is not None:
        parts.append(f"MFU {percent(now.mfu)}")
    if now.wait is not None:
        parts.append(f"data wait {percent(now.wait)}")
    if now.memory is not None and now.memory.peak is not None:
        parts.append(f"peak {now.memory.kind} {steady_bytes(now.memory.peak)}")
    if now.left is not None:
        parts.append(f"{duration(now.left)} left")
    return GAP.join(parts)


def lines_of(event: Event, now: Snapshot) -> list[str]:
    """An event as plain lines."""
    if event.kind == "evaluation":
        parts = [place(now, event.step), f"{now.split}: {metrics_text(event.metrics, now)}"]
        if event.loss is not None:
            parts.append(f"training loss {figure(event.loss)}")
        if event.left:
            parts.append(f"{duration(event.left)} left")
        return [GAP.join(parts)]
    if event.kind == "sample":
        lines, width = SAMPLE
        shown = bare(event.text).strip("\n").split("\n")[:lines]
        return [f"{place(now, event.step)}{GAP}it writes:", *(f"    | {line[:width]}".rstrip() for line in shown)]
    return [bare(event.text).replace("\n", " ")]


def metrics_text(metrics: Mapping[str, float], now: Snapshot) -> str:
    """The main metric first, beside the baseline."""
    parts = []
    shown, more = of_few_outputs(metrics)
    for name in sorted(shown, key=lambda name: name != now.metric):
        beside = f" (baseline {figure(now.baseline)})" if name == now.metric and now.baseline is not None else ""
        parts.append(f"{name.replace('_', ' ')} {figure(metrics[name])}{beside}")
    return ", ".join(parts + more)


def of_few_outputs(metrics: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """The metrics of a line, those of single outputs (`rmse.price`) only where they are few, and what is left out."""
    single = [name for name in metrics if "." in name]
    if len(single) <= MOST_SINGLE:
        return list(metrics), []
    return [name for name in metrics if "." not in name], [f"and {len(single):,} of single outputs in the report"]


def last_line(now: Snapshot, error: type[BaseException] | None = None) -> str:
    """The outcome on one line: step, time, metrics."""
    if error is not None:
        how = "stopped" if issubclass(error, KeyboardInterrupt | Stopped) else "failed"
    else:
        how = "done" if now.done else "ended"
    parts = [f"{how}: {place(now, now.step).replace('  ', ' ')} after {duration(now.elapsed)}"]
    if now.evaluated_step is not None:
        parts.append(f"{now.split} {metrics_text(now.metrics, now)}")
        if now.best is not None and now.best[1] != now.metrics.get(now.metric):
            parts.append(f"best {now.metric} {figure(now.best[1])} at step {now.best[0]:,}")
    elif now.smooth is not None:
        parts.append(f"training loss {figure(now.smooth)}")
    return "; ".join(parts)

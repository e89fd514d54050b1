"""Reading run folders that may be damaged, incomplete or still growing: problems are shown, never raised."""

from __future__ import annotations

import json
import math
import os
import socket
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from anyformer.errors import UserError, did_you_mean
from anyformer.safe_files import open_regular, read_json

RUN, METRICS, SPEED = "run.json", "metrics.jsonl", "speed.jsonl"
SIGNS = (RUN, METRICS, "checkpoints")  # a folder that holds one of these is a run
LARGEST = 2**53  # of steps, seconds and process ids
TAIL = 8192  # bytes at the end of a file in which its last line is looked for
STATUSES = ("running", "done", "failed", "interrupted")
STOPPED, DAMAGED = "stopped (resume)", "damaged"


@dataclass(frozen=True)
class RunRecord:
    """One run folder, as its run.json describes it; `problem` is why it could not be read."""

    folder: Path
    facts: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def id(self) -> str:
        """The folder's name, as typed on the command line."""
        return self.folder.name

    @property
    def status(self) -> str:
        """The recorded status, unless the process recorded as running is gone."""
        if self.problem:
            return DAMAGED
        status = self.text("status")
        if status != "running":
            return status if status in STATUSES else DAMAGED
        host = self.text("host")
        if host and host != socket.gethostname():
            return f"running ({host})"
        pid = self.number("pid")
        return "running" if pid and is_alive(int(pid), self.folder / RUN) else STOPPED

    def text(self, name: str) -> str:
        """A field as words; a list is joined, anything missing is empty."""
        value = self.facts.get(name)
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return "" if value is None or isinstance(value, dict) else str(value)

    def number(self, name: str) -> float | None:
        """A field as a number, if it is one, and finite."""
        value = numeric(self.facts.get(name))
        return value if value is not None and abs(value) <= LARGEST else None

    @property
    def step(self) -> float | None:
        """The last step: run.json has the last one saved, the metrics perhaps a later one."""
        saved = self.number("step")
        if self.facts.get("status") == "running":
            logged = last_step(self.folder / METRICS)
            return logged if saved is None else max(saved, logged or 0)
        return saved

    @property
    def best(self) -> tuple[str, float] | None:
        """Name and best value of the main metric."""
        best = self.facts.get("best")
        if not isinstance(best, dict):
            return None
        value = numeric(best.get("value"))
        return None if value is None else (str(best.get("metric", "")), value)

    @property
    def started(self) -> datetime | None:
        """When it began, in local time."""
        return parse_time(self.facts.get("started"))

    @property
    def seconds(self) -> float | None:
        """Training time, as far as recorded."""
        known = self.number("seconds")
        if known is not None:
            return known
        start, end = self.started, parse_time(self.facts.get("finished"))
        return (end - start).total_seconds() if start and end else None

    def summary(self) -> dict[str, Any]:
        """The run's entry in a list of runs, with normalised types."""
        metric, value = self.best or (None, None)
        return {
            "id": self.id, "folder": str(self.folder), "status": self.status, "task": self.text("task"),
            "model": self.text("model"), "data": self.text("data"), "step": self.step,
            "total": self.number("total"), "best_step": self.number("best_step"), "metric": metric, "value": value,
            "started": self.started.isoformat() if self.started else None, "seconds": self.seconds,
            "reason": self.text("reason"), "problem": self.problem,
        }  # fmt: skip


def open_run(folder: Path) -> RunRecord:
    """The run in this folder, damaged or not."""
    try:
        return RunRecord(folder, read_json(folder / RUN))
    except UserError as error:
        return RunRecord(folder, problem=str(error))


def is_run(folder: Path) -> bool:
    """Whether the folder looks like a run, even a broken one."""
    try:
        return folder.is_dir() and any((folder / name).exists() for name in SIGNS)
    except OSError:
        return False


def runs_in(folder: Path) -> list[RunRecord]:
    """Every run in the folder, oldest first; damaged ones come at the beginning."""
    try:
        names = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"cannot be listed ({error.strerror})", where=str(folder), fix="give the folder that holds the runs"
        ) from None
    found = [open_run(path) for path in names if is_run(path)]
    return sorted(found, key=lambda run: (run.started.timestamp() if run.started else -math.inf, run.id))


def find_run(folder: Path, name: str) -> RunRecord:
    """Find a run by path, id, unique prefix of an id, or unique part of one."""
    if is_run(Path(name)):
        return open_run(Path(name))
    known = {run.id: run for run in runs_in(folder)} if folder.is_dir() else {}
    if name in known:
        return known[name]
    for close in ([i for i in known if i.startswith(name)], [i for i in known if name in i]):
        if len(close) == 1:
            return known[close[0]]
        if close:
            raise UserError(
                f"{len(close)} runs are called {name}...", where=str(folder), fix="write more of the name",
                details=close[:20],
            )  # fmt: skip
    fix = did_you_mean(name, known) if known else "see 'anyformer runs'"
    raise UserError(f"unknown run {name!r}", where=str(folder), fix=fix)


# ---------------------------------------------------------------------------------------------------- metrics


class Follower:
    """Reads the complete lines added to a growing file since the last call; only new bytes are read."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.bad, self.file = path, 0, 0, -1

    def read(self) -> list[dict[str, Any]]:
        """New lines as objects; a line still being written waits, a line that is not a JSON object is counted."""
        try:
            with open_regular(self.path) as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self.file or now.st_size < self.offset:
                    self.file, self.offset = now.st_ino, 0  # another file of the same name, or written anew
                file.seek(self.offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        out: list[dict[str, Any]] = []
        for line in whole.splitlines():
            try:
                value = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                self.bad += 1
                continue
            step = numeric(value.get("step")) if isinstance(value, dict) else None
            if isinstance(value, dict) and step is not None and abs(step) <= LARGEST:
                out.append(value)
            elif value is not None:
                self.bad += 1
        return out


@dataclass
class History:
    """The lines of metrics.jsonl in step order; steps repeated by a resumed run replace the earlier ones."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: list[dict[str, Any]] = field(default_factory=list)
    speed: dict[float, dict[str, Any]] = field(default_factory=dict)
    timed: list[float] = field(default_factory=list)

    def add(self, lines: Iterable[dict[str, Any]]) -> None:
        """Add lines, oldest first."""
        for line in lines:
            evaluated = isinstance(line.get("eval"), dict)
            if evaluated:
                same = line["eval"].get("split")
                self.evals = [e for e in self.evals if e["step"] < line["step"] or e["eval"].get("split") != same]
                self.evals.append(line)
            else:
                while self.steps and self.steps[-1]["step"] >= line["step"]:
                    self.steps.pop()
                self.steps.append(line)
                while self.evals and self.evals[-1]["step"] >= line["step"]:
                    self.evals.pop()

    def splits(self) -> list[str]:
        """The names of the splits that were evaluated, in the order they came."""
        return list(dict.fromkeys(str(line["eval"].get("split", "")) for line in self.evals))

    def curve(self, name: str, split: str | None = None) -> list[tuple[float, float]]:
        """One metric over the steps, of training or of a split."""
        lines = (
            [(line["step"], line.get(name)) for line in self.steps]
            if split is None
            else [(line["step"], line["eval"].get(name)) for line in self.evals if line["eval"].get("split") == split]
        )
        return [(step, value) for step, raw in lines if (value := numeric(raw)) is not None]

    def add_speed(self, lines: Iterable[dict[str, Any]]) -> None:
        """Lines of speed.jsonl: times and rates, which differ from run to run and so have a file of their own."""
        self.speed.update((line["step"], line) for line in lines)
        self.timed = sorted(self.speed)

    def speed_of(self, step: float) -> dict[str, Any]:
        """The speed at a step: several steps are timed together, and the line of the last stands for all."""
        at = min(bisect_left(self.timed, step), len(self.timed) - 1)
        return self.speed[self.timed[at]] if self.timed else {}


def history(folder: Path) -> History:
    """All metrics of a run so far."""
    out = History()
    out.add(Follower(folder / METRICS).read())
    out.add_speed(Follower(folder / SPEED).read())
    return out


# ---------------------------------------------------------------------------------------------------- small things


def numeric(value: Any) -> float | None:
    """The value if it is a number (not a bool), else None."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def last_step(path: Path) -> float | None:
    """The step of the last complete line of a metrics file, read from its end."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return None
    for line in reversed(lines):
        try:
            return numeric(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
    return None


def figures_of(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values."""
    return {name: number for name, raw in values.items() if (number := numeric(raw)) is not None}


def parse_time(value: Any) -> datetime | None:
    """A time written as ISO text or as seconds since 1970, in local time."""
    try:
        if isinstance(value, str):
            return datetime.fromisoformat(value).astimezone()
        number = numeric(value)
        return None if number is None else datetime.fromtimestamp(number).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def is_alive(pid: int, written: Path) -> bool:
    """Whether the process that wrote the file still runs; one that reused its pid does not count."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        began = int(boot.split()[1]) + int(words[19]) / os.sysconf("SC_CLK_TCK")
        return words[0] not in "ZX" and began <= written.stat().st_mtime + 2
    except (OSError, StopIteration, ValueError, IndexError):
        return True  # no /proc on this system: the pid is all there is

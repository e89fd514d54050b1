"""Polling of a run by a page: new lines of metrics.jsonl since a byte offset."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyformer.checkpoints import store
from anyformer.errors import UserError
from anyformer.safe_files import open_regular
from anyformer.training.run.history import LARGEST, METRICS, SPEED, TAIL, figures_of, numeric, open_run

MOST_RUNS = 8  # most runs followed at once, to bound the work of a poll
CHUNK = 2**18  # bytes of metrics.jsonl per response; the rest comes with the next
PROBE = "probe/"


def run_news(folders: Sequence[Path], parameters: dict[str, str]) -> dict[str, Any]:
    """The response to `/look/api/run?run=0&since=OFFSET&file=NUMBER`."""
    number = bounded(parameters, "run", MOST_RUNS - 1)
    if number >= len(folders):
        raise UserError(f"run {number} is out of range", where="run", fix=f"this page follows {len(folders)}")
    since, file = bounded(parameters, "since", LARGEST), bounded(parameters, "file", 2**64)
    return read_run(folders[number], since, file) | {"run": number, "runs": [folder.name for folder in folders]}


def bounded(parameters: dict[str, str], name: str, most: int) -> int:
    """A whole number from 0 to `most`."""
    given = parameters.get(name, "0")
    if not (given.isascii() and given.isdigit()) or len(given) > 20 or int(given) > most:
        raise UserError(
            f"{name} {given[:40]!r} is not a whole number from 0 to {most}", where="run", fix=f"use {name}=0"
        )
    return int(given)


def read_run(folder: Path, since: int = 0, file: int = 0) -> dict[str, Any]:
    """The status of a run, and its lines from byte `since` of the file with inode `file` on.

    If metrics.jsonl has been replaced, as by `anyformer resume`, it is read from the start and `again` is set.
    """
    record = open_run(folder)
    found = new_lines(folder / METRICS, since, file)
    lines = found.pop("lines")
    steps = [line for line in lines if not isinstance(line.get("eval"), dict)]
    evaluated = [line for line in lines if isinstance(line.get("eval"), dict)]
    total, step = record.number("total"), record.step
    speed = recent_speed(folder / SPEED)
    running = record.status.startswith("running")
    left = None
    if running and total is not None and step is not None and "seconds" in speed:
        left = max(0.0, total - step) * speed["seconds"]
    return found | {
        "name": record.id, "status": record.status, "running": running, "step": step, "total": total, "left": left,
        "seconds": record.seconds, "speed": speed, "checkpoint": newest_checkpoint(folder),
        "steps": [[line["step"], numeric(line.get("loss")), numeric(line.get("lr"))] for line in steps],
        "evaluations": [{"step": line["step"], **figures_of(line["eval"])} for line in evaluated],
        "probes": [{"step": line["step"], **probe_figures(line)} for line in steps if probe_figures(line)],
    }  # fmt: skip


def newest_checkpoint(folder: Path) -> int | None:
    return max((step for step, _ in store.committed(folder / "checkpoints")), default=None)


def probe_figures(line: dict[str, Any]) -> dict[str, float]:
    return {name.removeprefix(PROBE): value for name, value in figures_of(line).items() if name.startswith(PROBE)}


def new_lines(path: Path, since: int, file: int) -> dict[str, Any]:
    """Complete lines from an offset on: at most `CHUNK` bytes, with `more` if there are more."""
    none = {"lines": [], "since": 0, "file": 0, "again": bool(since), "more": False}
    try:
        with open_regular(path) as opened:
            now = os.fstat(opened.fileno())
            again = bool(since) and (now.st_ino != file or now.st_size < since)
            start = 0 if again else since
            opened.seek(start)
            data = opened.read(CHUNK)
            whole = data[: data.rfind(b"\n") + 1]
            if not whole and len(data) == CHUNK:  # a line longer than a response is not ours
                whole = data
    except OSError:
        return none
    end = start + len(whole)
    more = bool(whole) and end < now.st_size
    return {"lines": parsed(whole), "since": end, "file": now.st_ino, "again": again, "more": more}


def parsed(data: bytes) -> list[dict[str, Any]]:
    """The lines that are JSON objects with a step; others are skipped."""
    out = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        step = numeric(value.get("step")) if isinstance(value, dict) else None
        if step is not None and abs(step) <= LARGEST:
            out.append(value)
    return out


def recent_speed(path: Path) -> dict[str, float]:
    """Seconds per step and throughput: the mean of the last lines of speed.jsonl."""
    try:
        with open_regular(path) as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - TAIL))
            lines = parsed(opened.read())[-20:]
    except OSError:
        return {}
    out: dict[str, float] = {}
    for name in dict.fromkeys(name for line in lines for name in figures_of(line) if name != "step"):
        values = [value for line in lines if (value := numeric(line.get(name))) is not None]
        out[name] = sum(values) / len(values)
    return out

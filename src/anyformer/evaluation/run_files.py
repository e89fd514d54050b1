"""Read the folder of a run for its report, however the run ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from anyformer.errors import UserError
from anyformer.safe_files import AGAIN, json_lines, read_json, read_text

Point = tuple[float, float]

SAMPLES, SAMPLE = 6, 3000  # samples shown, characters of each
SAMPLE_BYTES, PNG = 2**22, b"\x89PNG\r\n\x1a\n"  # largest picture shown; PNG signature
EVENTS = 50
EVALUATION = "evaluation.json"
DRAWN = 400  # points drawn per line


@dataclass
class RunFiles:
    """The content of a run's folder."""

    run: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Any] = field(default_factory=dict)
    config: str = ""
    command: str = ""
    training: dict[int, dict[str, Any]] = field(default_factory=dict)  # step to logged values
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)  # step to metrics of the validation rows
    events: list[dict[str, Any]] = field(default_factory=list)
    samples: list[tuple[str, str | bytes]] = field(default_factory=list)  # texts, or PNG files

    def line(self, name: str) -> list[Point]:
        """One logged value over training steps."""
        return points(self.training, name)

    def phase_losses(self) -> list[str]:
        """Names of the losses logged besides the total loss, for training in several phases."""
        return [name for name in next(iter(self.training.values()), {}) if name.endswith("_loss")]

    def evaluation_line(self, name: str) -> list[Point]:
        """One validation metric over the steps."""
        return points(self.evaluations, name)


def points(entries: dict[int, dict[str, Any]], name: str) -> list[Point]:
    """Steps and values, where the value is a finite number."""
    return [(step, float(entries[step][name])) for step in sorted(entries) if is_number(entries[step].get(name))]


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def read_run(folder: Path) -> RunFiles:
    """Read everything in the folder that the report shows."""
    files = RunFiles(
        run=object_of(folder / "run.json"),
        data=object_of(folder / "data.json"),
        env=object_of(folder / "env.json"),
        config=text_of(folder / "config.yaml"),
        command=text_of(folder / "command.txt").strip(),
    )
    for entry in lines_of(folder / "metrics.jsonl"):
        step = entry.get("step")
        if not isinstance(step, int):
            continue
        scores = entry.get("eval")
        # A resumed run logs some steps again: the later line wins.
        if isinstance(scores, dict):
            files.evaluations.setdefault(step, {}).update(scores if scores.get("split", "valid") == "valid" else {})
        else:
            files.training[step] = entry
    files.events = list(lines_of(folder / "events.jsonl"))[-EVENTS:]
    files.samples = samples_of(folder / "samples")
    return files


def object_of(path: Path) -> dict[str, Any]:
    """A JSON object from a file, empty if missing or damaged."""
    try:
        return read_json(path)
    except UserError:
        return {}


def read_evaluation(folder: Path) -> dict[str, Any]:
    """The content of evaluation.json, empty if missing; a file that holds something else is an error."""
    path = folder / EVALUATION
    if not path.is_file():
        return {}
    found = read_json(path)
    tables = {"metrics": found.get("metrics"), "baselines": found.get("baselines")}
    whole = all(
        table is None or (isinstance(table, dict) and all(isinstance(entry, dict) for entry in table.values()))
        for table in tables.values()
    )
    whole = whole and all(isinstance(one.get("metrics"), dict) for one in (tables["baselines"] or {}).values())
    words = all(isinstance(found.get(name) or "", str) for name in ("task", "split", "main"))
    if not whole or not words or not isinstance(found.get("facts") or {}, dict):
        raise UserError("does not hold an evaluation", where=str(path), fix=AGAIN)
    return found


def text_of(path: Path) -> str:
    """The text of a file, empty if missing."""
    try:
        return read_text(path)
    except UserError:
        return ""


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file; a line cut off by a crash is skipped."""
    for _, entry in json_lines(path):
        yield entry


def samples_of(folder: Path) -> list[tuple[str, str | bytes]]:
    """The first, the last and some samples in between."""
    paths = [path for path in folder.iterdir() if path.suffix in (".txt", ".png")] if folder.is_dir() else []
    paths.sort()
    if len(paths) > SAMPLES:
        paths = [paths[round(i * (len(paths) - 1) / (SAMPLES - 1))] for i in range(SAMPLES)]
    return [(path.stem, picture_of(path) if path.suffix == ".png" else shorten(text_of(path))) for path in paths]


def shorten(text: str) -> str:
    return text if len(text) <= SAMPLE else text[:SAMPLE] + " …"


def picture_of(path: Path) -> bytes:
    """The bytes of a PNG file, empty if damaged or too large for a page."""
    try:
        data = path.read_bytes() if path.stat().st_size <= SAMPLE_BYTES else b""
    except OSError:
        return b""
    return data if data.startswith(PNG) else b""


def smooth_line(line: list[Point], share: float = 0.03) -> list[Point]:
    """An exponential moving average over about this fraction of the line, with bias correction at the start."""
    keep = 1 - 1 / max(1.0, share * len(line))
    total = weight = 0.0
    out = []
    for step, value in line:
        total, weight = keep * total + value, keep * weight + 1
        out.append((step, total / weight))
    return out


def thin_line(line: list[Point], most: int = DRAWN) -> list[Point]:
    """Downsample a line to at most `most` points: means over equal intervals, both ends kept."""
    if len(line) <= most:
        return line
    inner, count = line[1:-1], most - 2
    edges = [round(i * len(inner) / count) for i in range(count + 1)]
    parts = [inner[a:b] for a, b in pairwise(edges)]
    means = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
    return [line[0], *means, line[-1]]

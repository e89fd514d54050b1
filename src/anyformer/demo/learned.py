"""The files of a finished run: curves in bits per byte, samples during training, results."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from anyformer.training.run.history import history
from anyformer.training.train import Run

POINTS = 120  # of the training curve

Point = tuple[float, float]


@dataclass(frozen=True)
class DemoResult:
    """The results of one run; bits are always per byte."""

    total: int
    training: list[Point]
    held_out: list[Point]
    samples: list[tuple[int, str]]  # step and generated text
    bits: float
    guessing: float | None  # by token frequencies
    primed: float | None  # xz primed with the training files
    seconds: float
    per_second: float | None  # tokens
    step_seconds: float | None
    memory: int | None  # bytes at most

    @classmethod
    def of(cls, run: Run) -> DemoResult:
        """Everything from the files of the run's folder."""
        lines = history(run.path)
        part = run.folder.read_json("data.json")["parts"]["train"]
        scale = part["tokens"] / part["bytes"] / math.log(2)  # from nats per token to bits per byte
        baselines: dict[str, Any] = run.evaluation.get("baselines") or {}
        speed = list(lines.speed.values())[1:] or list(lines.speed.values())  # the first entry includes warm-up
        texts = sorted((run.path / "samples").glob("step-*.txt"))
        return cls(
            total=int(run.facts["step"]),
            training=[(step, scale * loss) for step, loss in thin_points(lines.curve("loss"), POINTS)],
            held_out=lines.curve("bits_per_byte", "valid"),
            samples=[(int(path.stem.removeprefix("step-")), path.read_text(encoding="utf-8")) for path in texts],
            bits=run.metrics["bits_per_byte"],
            guessing=bits_of(baselines.get("trivial")),
            primed=bits_of(baselines.get("strong")),
            seconds=float(run.facts["seconds"]),
            per_second=middle([row["tokens_per_s"] for row in speed]),
            step_seconds=middle([row["seconds"] for row in speed]),
            memory=run.folder.read_json("plan.json").get("measured", {}).get("memory_bytes"),
        )


def bits_of(baseline: dict[str, Any] | None) -> float | None:
    """The bits per byte of a baseline, if known."""
    return None if baseline is None else baseline["metrics"].get("bits_per_byte")


def middle(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def thin_points(points: list[Point], most: int) -> list[Point]:
    """Downsample a noisy curve to the means of at most `most` intervals.

    >>> thin_points([(1, 4.0), (2, 2.0), (3, 1.0), (4, 1.0)], 2)
    [(1.5, 3.0), (3.5, 1.0)]
    """
    size = max(1, -(-len(points) // most))
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(statistics.fmean(x for x, _ in group), statistics.fmean(y for _, y in group)) for group in groups]

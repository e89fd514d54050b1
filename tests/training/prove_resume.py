"""Kill trainings at random moments and at every named point, resume them, and count the bits that differ.

    make prove-resume                       50 kills over the whole matrix; figures in benchmarks/results
    make prove-resume ARGS="--kills 10"     fewer; ARGS="--only table" for some of it
    make prove-resume ARGS="--stop"         SIGTERM to the whole group at random moments in place of kills

Each row is one kind of training: it is run once without a kill, then again and again with kills until its share of
them is used up. All log lines, samples and weights of all checkpoints left are compared with those of the first run.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as in tests/conftest.py

from anyformer import faults
from tests.training.nursery import Nursery
from tests.training.tiny import CASES, bits, resume, write_data


class Plan:
    """What kills next: a random moment or a named point; each point in its turn, until all have been hit."""

    def __init__(self, seed: int, *, stop: bool = False) -> None:
        self.chance = random.Random(seed)
        self.stop = stop
        self.points: list[str] = []

    def next_point(self) -> str:
        """The next point, or nothing for a random moment."""
        if self.stop or self.chance.random() < 0.4:
            return ""
        if not self.points:
            self.points = self.chance.sample(faults.POINTS, len(faults.POINTS))
        return self.points.pop()

    def fault(self, point: str) -> str:
        """The words for it; steps are many, so that any of them may be the one."""
        return f"kill@{point}:{self.chance.randint(1, 12) if point in ('step', 'gradients') else 1}" if point else ""

    def missed(self, point: str) -> None:
        """The run ended before it came to this point: try it again soon."""
        self.points.append(point)


@dataclass
class Row:
    """One kind of training, and what became of it."""

    name: str
    case: str
    settings: dict[str, object]
    share: int  # of 50 kills
    threads: int = 1
    at_random: int = 0
    at_points: list[str] = field(default_factory=list)
    runs: int = 0
    differing: int = 0
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        return self.at_random + len(self.at_points)


def matrix() -> list[Row]:
    """Text, image, table; workers 0 and 2; fp32, bf16, fp16; accumulation 1 and 3; one compiled, one with threads."""
    return [
        Row("text fp32, accumulation 3", "text", {}, 8),
        Row("text bf16, workers 2, accumulation 1", "text",
            {"training.precision": "bf16", "training.workers": 2, "training.micro_batch_size": 12}, 6),
        Row("text fp32, 2 threads", "text", {"training.threads": 2}, 4, threads=2),
        Row("image fp32, workers 2, augmented, running mean", "image", {}, 8),
        Row("image bf16, workers 0, accumulation 3", "image",
            {"training.precision": "bf16", "training.workers": 0, "training.micro_batch_size": 2}, 6),
        Row("table fp32, workers 2, accumulation 3, mean of 2", "table", {}, 8),
        Row("table fp16 with scaler, workers 0", "table",
            {"training.precision": "fp16", "training.workers": 0, "training.micro_batch_size": 12}, 7),
        Row("table compiled", "table", {"training.compile": "true", "training.workers": 0, "training.patience": "null"},
            3),
    ]  # fmt: skip


def words_of(row: Row, out: str) -> list[str]:
    return CASES[row.case].train(out, **{name.replace(".", "__"): value for name, value in row.settings.items()})


def prove(row: Row, nursery: Nursery, where: Path, kills: int, plan: Plan) -> None:
    """Use up a row's kills."""
    began = time.monotonic()
    first = row.name.replace(" ", "-")
    child = nursery.start(words_of(row, first), where)
    child.until((where / first).is_dir)
    start = time.monotonic()
    if child.wait():
        raise SystemExit(f"{row.name}: not even a run without kills works\n{child.output}")
    length = time.monotonic() - start
    while row.kills < kills:
        row.runs += 1
        out = f"{first}-{row.runs}"
        one_run(row, nursery, where, out, kills, plan, length)
        row.differing += bits(where / first, where / out)
    row.seconds = time.monotonic() - began


def one_run(row: Row, nursery: Nursery, where: Path, out: str, kills: int, plan: Plan, length: float) -> None:
    """Train and resume until the end is reached, with at most four kills on the way."""
    for attempt in range(100):
        words = resume(out) if (where / out).is_dir() else words_of(row, out)
        may = row.kills < kills and attempt < 4
        point = plan.next_point() if may else ""
        child = nursery.start(words, where, plan.fault(point))
        if may and not point:
            while not (where / out).is_dir() and child.ended() is None:
                time.sleep(0.002)
            limit = time.monotonic() + plan.chance.uniform(0, length)
            while time.monotonic() < limit and child.ended() is None:
                time.sleep(0.002)
            if child.ended() is None:
                child.send(signal.SIGTERM if plan.stop else signal.SIGKILL, group=plan.stop)
        code = child.wait()
        if code == 0:
            if point:
                plan.missed(point)
            return
        # Asked to stop while it trains it saves and ends with 143; before and after that there is nothing to save.
        if code not in ((143, -signal.SIGTERM) if plan.stop else (-signal.SIGKILL,)):
            raise SystemExit(f"{row.name}: exit {code} after {point or 'a random kill'}\n{child.output}")
        if point:
            row.at_points.append(point)
        else:
            row.at_random += 1
    raise SystemExit(f"{row.name}: no end after 100 attempts")


def write_figures(rows: list[Row]) -> None:
    """The proof in full size, as benchmarks/results keeps it."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / f"resume-proof-{datetime.date.today()}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["training", "kills", "random", "named", "runs", "differing_bits", "seconds"])
        for row in rows:
            lines.writerow([row.name, row.kills, row.at_random, len(row.at_points), row.runs, row.differing,
                            round(row.seconds, 1)])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", action="store_true", help="SIGTERM in place of SIGKILL")
    asked = parser.parse_args()
    rows = [row for row in matrix() if asked.only in row.name]
    shares = sum(row.share for row in rows)
    given = [asked.kills * row.share // shares for row in rows]
    for i in range(asked.kills - sum(given)):
        given[i % len(given)] += 1
    plan = Plan(asked.seed, stop=asked.stop)
    print(f"{'training':<50}{'kills':>6}{'random':>8}{'named':>7}{'runs':>6}{'bits':>6}{'seconds':>9}", flush=True)
    nurseries: dict[int, Nursery] = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_data(Path(folder))
            for row, kills in zip(rows, given, strict=True):
                if kills:
                    nursery = nurseries.setdefault(row.threads, nurseries.get(row.threads) or Nursery(row.threads))
                    prove(row, nursery, Path(folder), kills, plan)
                    print(f"{row.name:<50}{row.kills:>6}{row.at_random:>8}{len(row.at_points):>7}{row.runs:>6}"
                          f"{row.differing:>6}{row.seconds:>9.1f}", flush=True)  # fmt: skip
    finally:
        for nursery in nurseries.values():
            nursery.__exit__()
    hit = sorted({point for row in rows for point in row.at_points})
    missed = [point for point in faults.POINTS if point not in hit]
    if not asked.stop:
        print(f"named points hit: {', '.join(hit)}" + (f"; not hit this time: {', '.join(missed)}" if missed else ""))
    total, differing = sum(row.kills for row in rows), sum(row.differing for row in rows)
    print(f"{total} {'stops' if asked.stop else 'kills'}, {differing} differing bits")
    if not asked.stop and not asked.only and asked.kills == 50:
        write_figures(rows)
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())

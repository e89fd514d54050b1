"""What training costs: a step beside a plain loop, and the time from the command to the first step."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyformer.kernels import onednn
from benchmarks.training_cost import compare

pytestmark = [
    pytest.mark.alone,
    # What torch loads to compile still decorates with torch.jit.
    pytest.mark.filterwarnings("ignore:.torch[.]jit:DeprecationWarning"),
]

# Of the plain eager loop of the same model, at most. Where oneDNN multiplies for both, nothing is compiled, and what a
# step checks and keeps costs 0 to 3 % (benchmarks/LOG.md).
RATIO = 1.05 if onednn.is_faster() else 1.0
FIRST = 5.0  # seconds from the command to the first step for 1 MB of text, on two quiet cores
NEIGHBOUR = 4.0  # times as long a step takes beside one; 1.8 on quiet cores
SHARED = 2.0  # times as long where neighbours use the machine


def test_a_step_takes_less_time_than_a_plain_eager_one():
    """The step that `train` settles on for a long run, compiled or not."""
    # A neighbour may spoil one try; a step that is really slower spoils all three.
    tries = [compare(rounds=7)["ratio"]]
    while tries[-1] > RATIO and len(tries) < 3:
        tries.append(compare(rounds=7)["ratio"])
    assert min(tries) <= RATIO, tries


def write_book(path: Path) -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(4000)]
    lines = (" ".join(draw.choices(words, k=12)) + ".\n" for _ in range(14_000))
    path.write_text("".join(lines)[:1_000_000], encoding="utf-8")


def seconds_to_the_first_step(folder: Path) -> float:
    began = time.perf_counter()
    command = [sys.executable, "-m", "anyformer.cli", "train", "book.txt", "--out", "run", "--progress", "none",
               "--device", "cpu", "--steps", "200"]  # fmt: skip
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        metrics = folder / "run" / "metrics.jsonl"
        while not (metrics.is_file() and metrics.stat().st_size):
            assert running.poll() is None, "it ended before its first step"
            assert time.perf_counter() - began < 120
            time.sleep(0.01)
        return time.perf_counter() - began
    finally:
        running.kill()
        running.wait()


def test_the_first_step_comes_soon(tmp_path):
    taken = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_book(folder / "book.txt")
        taken.append(seconds_to_the_first_step(folder))
        if taken[-1] <= FIRST:
            break
    assert min(taken) <= FIRST * SHARED, taken


def test_a_busy_neighbour_on_one_of_two_cores_does_not_stop_a_step():
    """Twice as slow is its share of the core; threads that spin made it 10 to 30 times."""
    from benchmarks.busy_neighbour import measure

    tries = [measure(steps=12)]
    while tries[-1] > NEIGHBOUR and len(tries) < 3:
        tries.append(measure(steps=12))
    assert min(tries) <= NEIGHBOUR, tries

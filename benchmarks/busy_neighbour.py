"""How much slower a training step gets when another program keeps one of two cores busy.

    python -m benchmarks.busy_neighbour

Each figure is a real `anyformer train` in a process of its own, held on two cores, with two threads; the neighbour is a
process that counts for ever, held on the first of them. Medians of the steps, in milliseconds. The policies are set
from outside: `as started` is what the command line itself chooses.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORDS = "the a cat dog sat ran on under mat house big small red blue and then it was very happy sad tree".split()
ENVIRONMENT = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
POLICIES: dict[str, dict[str, str]] = {
    "as started": {},
    "sleeping": {"OMP_WAIT_POLICY": "passive"},
    "10,000 turns": {"GOMP_SPINCOUNT": "10000"},
    "library default": {"GOMP_SPINCOUNT": "300000"},
}


@contextmanager
def neighbour(core: int, *, busy: bool) -> Iterator[None]:
    """A program that never rests, on one core."""
    if not busy:
        yield
        return
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def step_milliseconds(where: Path, cores: list[int], env: dict[str, str], *, threads: int | None, steps: int) -> float:
    """The median step of one training; without `threads` it chooses for itself."""
    run = where / f"run-{random.randrange(10**9)}"
    sets = ["--set", f"training.eval_every={steps}", *(["--set", f"training.threads={threads}"] if threads else [])]
    words = [sys.executable, "-m", "anyformer.cli", "train", "book.txt", "--device", "cpu", "--steps", str(steps),
             "--out", str(run), "--quiet", *sets]  # fmt: skip
    plain = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    plain |= env
    subprocess.run(words, cwd=where, env=plain, check=True, capture_output=True,
                   preexec_fn=lambda: os.sched_setaffinity(0, cores))  # fmt: skip
    lines = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines()]
    return 1e3 * statistics.median(line["seconds"] for line in lines[3:])


def write_text(where: Path) -> None:
    draw = random.Random(0)
    lines = (" ".join(draw.choices(WORDS, k=8)) for _ in range(4000))
    (where / "book.txt").write_text("\n".join(lines) + "\n")


def pair(where: Path, cores: list[int], env: dict[str, str], *, threads: int | None, steps: int) -> list[float]:
    """Milliseconds of a step alone, and beside a neighbour."""
    times = []
    for busy in (False, True):
        with neighbour(cores[0], busy=busy):
            times.append(step_milliseconds(where, cores, env, threads=threads, steps=steps))
    return times


def measure(steps: int) -> float:
    """How many times as long a step takes beside a neighbour, as the command line starts it, with two threads."""
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder))
        alone, beside = pair(Path(folder), two_cores(), {}, threads=2, steps=steps)
    return beside / alone


def two_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))[:2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cores", type=int, nargs=2, default=two_cores())
    asked = parser.parse_args()
    print(f"{'waiting':<18}{'threads':>8}{'alone':>10}{'beside':>10}{'times':>8}")
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder))
        for name, env in POLICIES.items():
            for threads in (2, None) if name == "as started" else (2,):
                alone, beside = pair(Path(folder), asked.cores, env, threads=threads, steps=asked.steps)
                shown = "chosen" if threads is None else threads
                print(f"{name:<18}{shown:>8}{alone:>10.1f}{beside:>10.1f}{beside / alone:>8.2f}", flush=True)


if __name__ == "__main__":
    main()

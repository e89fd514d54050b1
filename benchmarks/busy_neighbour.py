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
POLICIES: dict[str, dict[str, str]] = {
    "as started": {},
    "spinning": {"OMP_WAIT_POLICY": "active"},
    "library default": {"OMP_WAIT_POLICY": ""},
    "sleeping": {"OMP_WAIT_POLICY": "passive"},
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
    plain = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")}
    plain |= env
    subprocess.run(words, cwd=where, env=plain, check=True, capture_output=True,
                   preexec_fn=lambda: os.sched_setaffinity(0, cores))  # fmt: skip
    lines = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines()]
    return 1e3 * statistics.median(line["seconds"] for line in lines[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cores", type=int, nargs=2, default=sorted(os.sched_getaffinity(0))[:2])
    asked = parser.parse_args()
    print(f"{'waiting':<18}{'threads':>8}{'alone':>10}{'beside':>10}{'times':>8}")
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        lines = (" ".join(random.choice(WORDS) for _ in range(8)) for _ in range(4000))
        (where / "book.txt").write_text("\n".join(lines) + "\n")
        for name, env in POLICIES.items():
            for threads in (2, None) if name == "as started" else (2,):
                times = []
                for busy in (False, True):
                    with neighbour(asked.cores[0], busy=busy):
                        times.append(step_milliseconds(where, asked.cores, env, threads=threads, steps=asked.steps))
                shown = "chosen" if threads is None else threads
                print(f"{name:<18}{shown:>8}{times[0]:>10.1f}{times[1]:>10.1f}{times[1] / times[0]:>8.2f}", flush=True)


if __name__ == "__main__":
    main()

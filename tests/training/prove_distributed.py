"""Train in several processes in every way, stop and kill them, and compare with one process.

    make prove-distributed                        all of it, some minutes; figures in benchmarks/results
    make prove-distributed ARGS="--only steps"    steps, stops, losses, restarts or machines

steps      gradients and curves of 2 and 4 processes beside those of one, on every task
stops      SIGTERM at random moments: same step, saved, resumed to the same bits
losses     a process that raises, is killed or stopped: how long until all are gone, and what is said
restarts   torchrun starts them again after a kill; save on 4, go on with 4, 2, 1 and 3
machines   two launchers that meet, as on two machines
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from tests.training.distributed.launch import free_port, run, start
from tests.training.nursery import Nursery
from tests.training.test_engine import TASKS
from tests.training.tiny import CASES, Case, bits, logged_lines, resume, steps_of, write_data

KINDS = ("ddp", "fsdp", "tensor")
TABLE = Case(("table.csv",), CASES["table"].settings | {"training.average": 0, "training.micro_batch_size": 3},
             words=("--target", "y"))  # fmt: skip
Figure = tuple[str, str, float | int | str, bool]  # what was tried, what was measured, the figure, whether it is good


def prove_steps(nursery: Nursery, place: Path) -> Iterator[Figure]:
    for size in (2, 4):
        words = [str(place), *TASKS, "gated"]
        run(nursery, words, place, size, call="tests.training.distributed.checks:main")
        found = [json.loads((place / f"{size}-{rank}.json").read_text()) for rank in range(size)]
        for kind in KINDS:
            worst = max(off for one in found for off in one[kind]["gradients"].values())
            yield f"{kind} x{size}", "gradients, relative", worst, worst < 1e-6
            worst = max(one[kind]["curve"] for one in found)
            yield f"{kind} x{size}", "loss over 50 steps, float64", worst, worst < 1e-9
            share = max(one[kind]["bytes"] / one["alone"] for one in found)
            yield f"{kind} x{size}", "bytes held, of one process", share, kind != "fsdp" or share < 1.02 / size


def prove_stops(nursery: Nursery, place: Path, each: int = 5) -> Iterator[Figure]:
    chance = random.Random(0)
    for size, workers, kind in ((1, 0, "auto"), (2, 0, "ddp"), (2, 2, "ddp"), (2, 0, "fsdp"), (2, 0, "tensor")):
        case = Case(TABLE.files, TABLE.settings | {"training.workers": workers, "training.parallel": kind}, TABLE.words)
        form = f"{kind} x{size}, {workers} workers"
        whole = place / f"whole-{size}-{workers}-{kind}"
        run(nursery, case.train(whole.name), place, size)
        for number in range(each):
            stopped = place / f"stop-{size}-{workers}-{kind}-{number}"
            processes = start(nursery, case.train(stopped.name), place, size)
            processes.until_logged(stopped, chance.randint(1, 8))
            time.sleep(chance.random() / 20)
            began = time.monotonic()
            processes.send(signal.SIGTERM)
            codes = processes.wait()
            seconds = time.monotonic() - began
            if codes != [0] * size:  # it may have been done just then
                yield form, "seconds from SIGTERM to exit 143", seconds, codes == [143] * size and seconds < 30
                run(nursery, resume(stopped.name), place, size)
            yield form, "bits that differ", (off := bits(stopped, whole)), off == 0


def prove_losses(nursery: Nursery, place: Path) -> Iterator[Figure]:
    for size in (2, 4):
        for how in ("raise", "kill", "stop"):
            name = f"lost-{size}-{how}"
            words = TABLE.train(name, training__steps=10**6, training__compile="false")
            faults = {1: "eio@step:20"} if how == "raise" else {}
            processes = start(nursery, words, place, size, faults=faults)
            processes.until_logged(place / name, 6)
            began = time.monotonic()
            if how != "raise":
                processes.children[1].send(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            left = [child for rank, child in enumerate(processes.children) if rank != 1 or how == "raise"]
            codes = [child.wait() for child in left]
            seconds = time.monotonic() - began
            if how == "stop":
                processes.children[1].send(signal.SIGKILL)
            told = [line for line in processes.errors if "rank 1 at step" in line]
            good = all(codes) and len(processes.errors) == len(told) == 1 and seconds < 30
            yield f"{how} rank 1 of {size}", "seconds until all are gone", seconds, good


def prove_restarts(nursery: Nursery, place: Path) -> Iterator[Figure]:
    done = launch(["--nproc-per-node", "2", "--max-restarts", "2"], TABLE.train("again"), place, fault="kill@step:20")
    yield "torchrun, a kill at step 10", "exit code", done.returncode, done.returncode == 0
    for kind in KINDS:
        name = f"four-{kind}"
        processes = start(nursery, TABLE.train(name, training__parallel=kind), place, 4, faults={3: "term@step:6"})
        assert processes.wait() == [143] * 4, processes.output
        reached = steps_of(place / name)[-1]
        for size in (4, 2, 1, 5):
            copy = place / f"{name}-on-{size}"
            subprocess.run(["cp", "-r", str(place / name), str(copy)], check=True)
            words = [*resume(copy.name), "--set", "training.parallel=auto"]
            codes = start(nursery, words, place, size).wait()
            good = codes == ([2] * 5 if size == 5 else [0] * size)
            yield f"saved by {kind} x4 at step {reached}, resumed on {size}", "exit codes", str(codes), good
        lines = [logged_lines(place / f"{name}-on-{size}") for size in (4, 2, 1)]
        same = all([line["rows"] for line in one] == [line["rows"] for line in lines[0]] for one in lines)
        yield f"saved by {kind} x4", "same rows on 4, 2 and 1", str(same), same


def prove_machines(nursery: Nursery, place: Path) -> Iterator[Figure]:
    where = f"127.0.0.1:{free_port()}"
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", where]
    other = popen([*words, "--rdzv-id", "two"], TABLE.train("machines"), place)
    done = launch([*words, "--rdzv-id", "two"], TABLE.train("machines"), place)
    codes = [done.returncode, other.wait(120)]
    yield "two launchers", "exit codes", str(codes), codes == [0, 0]


def popen(options: list[str], words: list[str], place: Path, fault: str = "") -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "anyformer", *words]
    return subprocess.Popen(program, cwd=place, env=os.environ | {"ANYFORMER_FAULT": fault},
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip


def launch(options: list[str], words: list[str], place: Path, fault: str = "") -> subprocess.Popen[bytes]:
    """`torchrun OPTIONS -m anyformer WORDS`, to its end."""
    port = [] if "--rdzv-backend" in options else ["--master-port", str(free_port())]
    process = popen([*port, *options], words, place, fault)
    process.wait(300)
    return process


PROOFS = {"steps": prove_steps, "stops": prove_stops, "losses": prove_losses, "restarts": prove_restarts,
          "machines": prove_machines}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PROOFS, help="one of the proofs")
    parser.add_argument("--csv", type=Path, help="where the figures go")
    asked = parser.parse_args()
    stamp = f"torch{torch.__version__.partition('+')[0]}-cpu-{os.cpu_count()}cores-{datetime.date.today()}"
    path = asked.csv or Path("benchmarks/results") / f"{stamp}-distributed.csv"
    rows: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder, Nursery() as nursery:
        write_data(Path(folder))
        for name, prove in PROOFS.items():
            if asked.only in (None, name):
                for row in prove(nursery, Path(folder)):
                    rows.append(row)
                    what, measured, figure, good = row
                    shown = f"{figure:.3g}" if isinstance(figure, float) else figure
                    sys.stdout.write(f"{'ok ' if good else 'BAD'} {what:<44} {measured:<30} {shown}\n")
                    sys.stdout.flush()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("tried", "measured", "figure", "good"), *rows])
    bad = sum(not good for *_, good in rows)
    sys.stdout.write(f"{len(rows)} figures, {bad} bad; {path}\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())

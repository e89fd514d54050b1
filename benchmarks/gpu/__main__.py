"""Training on one GPU, anyformer beside nanoGPT, transformers, timm and rtdl, in one process and in turns.

    make bench-gpu ARGS="--nanogpt DIR --rtdl DIR"                     everything, some 10 minutes on an H200
    python -m benchmarks.gpu --only gpt2,llama --minutes 8             some jobs, by name or group; --list says which
    python -m benchmarks.gpu --quick                                   tiny sizes, also on a CPU: does it all run?

Rows are added to benchmarks/results/torchX-cudaY-GPU-DATE-training.csv one after another (--out: another folder), so
that a run that is cut short keeps what it had, and a second one of the same day goes on. A program that is not there
is a row that says so. Then: python -m benchmarks.gpu.page
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

# Before torch starts CUDA: the deterministic mode needs it, and it is what torch takes on this GPU anyway.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from benchmarks.gpu import results
from benchmarks.gpu.ahead import compile_ahead, first_step_seconds
from benchmarks.gpu.jobs import Place, list_jobs
from benchmarks.gpu.losses import compare_losses
from benchmarks.gpu.results import Row
from benchmarks.gpu.timing import Job, describe, forget_everything, run_job

FIRST = "gpt2-124m"
# The first step of our first job in a fresh process: with an empty cache of compiled code, and with what that left.
STARTS = {"cold-start": "nothing compiled before", "warm-start": "compiled before"}
LOSSES = "losses"


class Run:
    """One run of the script: what it was asked for, its clock and its file."""

    def __init__(self, asked: argparse.Namespace) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.place = Place(device, asked.quick, asked.nanogpt, asked.rtdl)
        self.began, self.minutes, self.processes = time.perf_counter(), asked.minutes, asked.ahead
        self.folder: Path | None = asked.out or (None if asked.quick else results.FOLDER)
        self.is_ahead = False  # whether the jobs were compiled ahead, where that was asked for
        self.jobs = {job.name: job for job in list_jobs(self.place)}
        self.names = chosen(asked.only, self.jobs)

    def all(self) -> None:
        for name in self.names:
            if name in self.jobs and not self.is_ahead:
                self.compile_ahead()
            if time.perf_counter() - self.began > self.minutes * 60:
                print(
                    f"{self.minutes} minutes are over; not measured: {' '.join(self.names[self.names.index(name) :])}"
                )
                return
            self.one(name)
            forget_everything(self.place.torch_device)

    def one(self, name: str) -> None:
        """Measure one job, write its rows down and show them."""
        try:
            if name == LOSSES:
                rows = [compare_losses(self.place, self.path(LOSSES))]
            elif name in STARTS:
                rows = [self.measure_start(name)]
            else:
                job = self.jobs[name]
                rows = [results.row_of(job, result)
                        for result in run_job(job, self.place.torch_device, quick=self.place.quick)]  # fmt: skip
        except Exception as error:
            rows = [{"job": name, "note": describe(error), **results.machine()}]
        path = self.path(results.KIND)
        if path is not None:
            results.append(path, rows)
        for row in rows:
            print(line(row), flush=True)
        print(f"  {time.perf_counter() - self.began:.0f} s", flush=True)

    def measure_start(self, name: str) -> Row:
        """Seconds from building the model to the end of its first step, in a fresh process."""
        job = self.jobs[FIRST]
        seconds = first_step_seconds(self.place, FIRST, 0)
        return {"job": name, "work": job.work, "system": job.programs[0].system, "mode": STARTS[name],
                "unit": job.unit, "batch": str(job.batch), "length": str(job.length), "depth": str(job.depth),
                "first_step_s": results.text(seconds, ".1f"), **results.machine()}  # fmt: skip

    def compile_ahead(self) -> None:
        self.is_ahead = True
        if self.processes:
            compile_ahead(self.place, [name for name in self.names if name in self.jobs], self.processes, self.minutes)

    def path(self, kind: str) -> Path | None:
        return None if self.folder is None else self.folder / results.file_name(kind)


def chosen(only: str | None, jobs: dict[str, Job]) -> list[str]:
    """Names of jobs in their order, by name or group; the cold start first, while nothing is compiled."""
    names = [*STARTS, FIRST, LOSSES, *(name for name in jobs if name != FIRST)]
    if only is None:
        return names
    groups = {name: {name, jobs[name].group if name in jobs else name} for name in names}
    asked = set(only.split(","))
    if unknown := asked - set().union(*groups.values()):
        known = sorted(set().union(*groups.values()))
        raise SystemExit(f"error: no job is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [name for name in names if groups[name] & asked]


def line(row: Row) -> str:
    """A row for the terminal."""
    found = {name: row.get(name, "") for name in results.COLUMNS}
    words = [f"{found['job']:18}", f"{found['system']:13}", f"{found['mode']:24}"]
    for name, mark in (("ms_per_step", "ms"), ("per_second", f"{found['unit']}/s"), ("peak_gib", "GiB"),
                       ("first_step_s", "s to the first step"), ("mfu", "MFU"), ("spread", "spread"),
                       ("loss_difference", "nats at most")):  # fmt: skip
        if found[name]:
            words.append(f"{found[name]} {mark}")
    return "  ".join([*words, found["note"]]).rstrip()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names or groups of jobs, with commas between them")
    parser.add_argument("--list", action="store_true", help="say which jobs there are")
    parser.add_argument("--minutes", type=float, default=60.0, help="no job is begun after that")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; writes a file only with --out")
    parser.add_argument(
        "--ahead", type=int, default=0, help="processes that compile the later jobs before they are timed"
    )
    parser.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    parser.add_argument("--rtdl", type=Path, help="a checkout of rtdl-revisiting-models, where it is not installed")
    parser.add_argument("--out", type=Path, help="folder of the CSV (benchmarks/results)")
    return parser.parse_args()


def main() -> None:
    asked = parse_arguments()
    if asked.list:
        for job in list_jobs(Place("cpu")):
            print(f"{job.name:18} {job.group:12} {job.work}")
        return
    if not asked.quick and not torch.cuda.is_available():
        raise SystemExit("error: no GPU here; --quick tries the script on a CPU")
    # What is left in float32 (rtdl) may use TF32, as nanoGPT's script sets it.
    torch.set_float32_matmul_precision("high")
    # A cache of its own: the first step of the first job is then a cold one whatever ran here before.
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", ignore_cleanup_errors=True) as folder:
        os.environ |= {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": f"{folder}/triton"}
        # Where torch was installed without bytecode, a fresh process would compile its sources before the first step.
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        print(results.device_name(), "torch", torch.__version__, "cuda", torch.version.cuda, flush=True)
        Run(asked).all()


if __name__ == "__main__":
    main()

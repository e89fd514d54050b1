"""The CSV of a run: a row for every program of every job, written as soon as it is known."""

from __future__ import annotations

import csv
import datetime
import re
from pathlib import Path

import torch

from anyformer.training.setup.device_peaks import peak_flops
from benchmarks.gpu.timing import Job, Result

FOLDER = Path(__file__).resolve().parents[1] / "results"
KIND = "training"
COLUMNS = ["job", "work", "system", "mode", "unit", "batch", "length", "depth", "ms_per_step", "spread", "per_second",
           "peak_gib", "first_step_s", "mfu", "loss_difference", "note", "torch", "cuda", "gpu"]  # fmt: skip

Row = dict[str, str]


def file_name(kind: str) -> str:
    """Named as the other results: torch, CUDA, GPU, date, what was measured."""
    version = torch.__version__.partition("+")[0]
    place = "cpu"
    if torch.cuda.is_available():
        place = f"cuda{torch.version.cuda}-{device_name().removeprefix('NVIDIA ').lower().replace(' ', '-')}"
    return f"torch{version}-{place}-{datetime.date.today()}-{kind}.csv"


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def row_of(job: Job, result: Result) -> Row:
    """A result as text, empty where there is no figure."""
    seconds, gpu = result.seconds, device_name()
    units = job.batch * job.length
    peak = peak_flops(gpu, "bf16")
    mfu = None if seconds is None or job.flops is None or peak is None else job.flops / seconds / peak
    return {
        "job": job.name, "work": job.work, "system": result.program.system, "mode": result.program.mode,
        "unit": job.unit, "batch": str(job.batch), "length": str(job.length), "depth": text(job.depth, "d"),
        "ms_per_step": text(seconds and seconds * 1e3, ".3f"), "spread": text(result.spread, ".3f"),
        "per_second": text(seconds and units / seconds, ".0f"),
        "peak_gib": text(result.peak and result.peak / 2**30, ".2f"),
        "first_step_s": text(result.first_step, ".1f"), "mfu": text(mfu, ".3f"), "loss_difference": "",
        "note": result.note or ("" if torch.cuda.is_available() else "on a CPU, not compiled"), **machine(),
    }  # fmt: skip


def machine() -> Row:
    return {"torch": torch.__version__, "cuda": torch.version.cuda or "", "gpu": device_name()}


def text(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def append(path: Path, rows: list[Row]) -> None:
    """Add rows at the end of the file; a run that is cut short keeps what it had."""
    fresh = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[Row]:
    """The rows of a file; where a program was measured again, the later figures in the place of the earlier ones."""
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    return list({(row["job"], row["system"], row["mode"]): row for row in found}.values())


def is_ours(path: Path) -> bool:
    """Whether this is a file of this script: others of the same kind have other columns."""
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), []) == COLUMNS


def newest(folder: Path = FOLDER) -> Path | None:
    """The latest file measured on a GPU."""
    return latest([path for path in folder.glob(f"torch*-cuda*-{KIND}.csv") if is_ours(path)])


def newest_processes(folder: Path = FOLDER) -> Path | None:
    """The latest file of benchmarks/processes.py."""
    return latest(list(folder.glob("torch*-processes.csv")))


def latest(files: list[Path]) -> Path | None:
    """By the date in their names."""
    return max(files, key=lambda path: re.findall(r"\d{4}-\d\d-\d\d", path.name)[-1:], default=None)

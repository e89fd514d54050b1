"""One run of the scoreboard: `anyformer train FILE --minutes M` as a process of its own, and its figures.

A run within minutes leaves its baselines what time there is, which is often too little to learn from all rows. A run of
one step without a limit has the baselines whole: the rows of each side depend on the files and the seed alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from tarfile import TarError
from typing import Any

import torch

from benchmarks.scoreboard.archives import unpack
from benchmarks.scoreboard.published import judged_metrics
from benchmarks.scoreboard.results import Row
from benchmarks.scoreboard.sets import DataSet

GRACE = 60.0  # seconds beyond its minutes after which a run is stopped
LONGEST = 1800.0  # seconds of a run that has no minutes


@dataclass(frozen=True)
class RunOptions:
    """What all runs of a scoreboard have in common."""

    data: Path  # the archives
    out: Path  # logs, and runs while they last
    minutes: float | None  # of each run; None: one step, then baselines without a limit
    device: str
    workers: int
    threads: int
    deadline: float | None = None  # on the monotonic clock, of all runs together
    settings: tuple[str, ...] = ()  # of every run, as --set takes them
    keep: bool = False  # the folders of the runs, checkpoints included


def run_set(chosen: DataSet, seed: int, options: RunOptions) -> Row:
    """Train by the defaults and read the figures; whatever goes wrong is the row's note."""
    row = {"set": chosen.name, "seed": str(seed), "budget": show_minutes(options.minutes),
           "device": device_name(options.device), "torch": torch.__version__, "workers": str(options.workers),
           "settings": " ".join(options.settings)}  # fmt: skip
    scratch = options.out / f"{chosen.name}-{seed}"
    run = scratch / "run"
    began = time.monotonic()
    if options.deadline is not None and began + 60 * (options.minutes or 0) > options.deadline:
        return row | {"note": "not run: the time of the scoreboard was up"}
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        folder = unpack(options.data, chosen, scratch)
        note = train(chosen, seed, options, folder, run)
        row["minutes"] = f"{(time.monotonic() - began) / 60:.2f}"
        return row | read_figures(chosen, folder, run, note)
    except (OSError, EOFError, LZMAError, TarError, ValueError, KeyError, TypeError, AttributeError) as error:
        return row | {"note": f"{type(error).__name__}: {error}"}
    finally:
        if not options.keep:
            shutil.rmtree(scratch, ignore_errors=True)


def train(chosen: DataSet, seed: int, options: RunOptions, folder: Path, run: Path) -> str:
    """The process itself, its output in a log; what went wrong, or nothing."""
    length = ("--steps", "1") if options.minutes is None else ("--minutes", show_minutes(options.minutes))
    words = [sys.executable, "-m", "anyformer.cli", "train", *chosen.words, *length, "--device", options.device,
             "--seed", str(seed), "--out", str(run.resolve()), "--progress", "lines",
             *(word for one in options.settings for word in ("--set", one))]  # fmt: skip
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "RAYON_NUM_THREADS"), str(options.threads))
    log = options.out / f"{chosen.name}-{seed}.log"
    with log.open("w", encoding="utf-8") as file:
        file.write(f"$ anyformer {' '.join(words[3:])}\n")
        file.flush()
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = process.wait(LONGEST if options.minutes is None else 60 * options.minutes + GRACE)
        except subprocess.TimeoutExpired:
            return f"stopped {GRACE:.0f} s after its time was up"
        finally:
            process.kill()
            process.wait()
    if code == 0:
        return ""
    said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return f"exit {code}: {next((line for line in said if line.startswith('error')), said[-1])}"[:300]


def read_figures(chosen: DataSet, folder: Path, run: Path, note: str) -> Row:
    """What the run's own files say."""
    if not (run / "evaluation.json").is_file():
        return {"note": note or "no evaluation was written"}
    evaluation: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    facts: dict[str, Any] = json.loads((run / "run.json").read_text())
    metric = str(evaluation["main"])
    baselines = evaluation.get("baselines") or {}
    trivial, strong = (baselines.get(name) or {} for name in ("trivial", "strong"))
    ours, difference = evaluation.get("interval") or {}, strong.get("difference") or {}
    by_others = chosen.published.measure(evaluation, folder) if chosen.published else None
    notes = [note, *(str(one) for one in evaluation.get("notes") or () if "were evaluated" in str(one))]
    return {
        "task": str(evaluation["task"]), "metric": metric, "ours": number(judged_metrics(evaluation).get(metric)),
        "low": number(ours.get("low")), "high": number(ours.get("high")),
        "trivial": number(trivial.get("metrics", {}).get(metric)),
        "strong": number(strong.get("metrics", {}).get(metric)), "strong_name": str(strong.get("name", "")),
        "difference_low": number(difference.get("low")), "difference_high": number(difference.get("high")),
        "published_ours": number(by_others), "train_rows": str(train_rows(run)), "model": str(facts.get("model") or ""),
        "steps": str(facts.get("step") or ""), "note": "; ".join(filter(None, notes)),
    }  # fmt: skip


def train_rows(run: Path) -> int | str:
    """Rows, windows or images that were trained on, as the run counted them."""
    return (json.loads((run / "data.json").read_text()).get("split") or {}).get("train", "")


def show_minutes(minutes: float | None) -> str:
    return "" if minutes is None else f"{minutes:g}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def device_name(device: str) -> str:
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU, {os.cpu_count()} cores"

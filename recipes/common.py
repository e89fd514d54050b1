"""What the recipes share: their arguments, and a line of figures for every run."""

from __future__ import annotations

import argparse
import csv
import json
import logging
import sys
import tarfile
from pathlib import Path
from typing import Any

from anyformer.training.setup.settings_file import parse_settings
from anyformer.training.train import Run


def arguments(about: str | None, *, runs: int) -> argparse.Namespace:
    """--data, --seeds, --device, --out, --csv, --preset and --set, as every recipe takes them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the file or folder of the data set")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(runs)))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--csv", type=Path, help="add a line of figures for each run to this file")
    parser.add_argument("--preset")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return parser.parse_args()


def settings_of(asked: argparse.Namespace) -> dict[str, Any]:
    """What --set says, as `anyformer.train` takes it."""
    return parse_settings(asked.settings)


def unpack(archives: Path, name: str, out: Path) -> Path:
    """The folder of a set from the archives that `python -m benchmarks.scoreboard --prepare` writes."""
    if not (out / name).is_dir():
        with tarfile.open(archives / f"{name}.tar.xz") as packed:
            packed.extractall(out, filter="data")
    return out / name


def find_held_out(folder: Path, ending: str) -> dict[str, tuple[str, ...]]:
    """Settings for the files of a folder that validate and test, where they are there."""
    sides = {side: folder / f"{side}{ending}" for side in ("valid", "test")}
    return {f"data.split.{side}_file": (str(path),) for side, path in sides.items() if path.is_file()}


def report(name: str, seed: int, run: Run, asked: argparse.Namespace, **more: Any) -> None:
    """One line of JSON on stdout and, with --csv, one line in a table."""
    facts, evaluation = run.facts, run.evaluation
    line = {"recipe": name, "seed": seed, "steps": facts["step"], "seconds": facts["seconds"],
            "best_step": facts["best_step"]}  # fmt: skip
    for split, metrics in evaluation["metrics"].items():
        line |= {f"{split}_{key}": round(value, 5) for key, value in metrics.items()}
    line |= more | {"settings": " ".join(asked.settings)}
    print(json.dumps(line))
    if asked.csv is not None:
        there = asked.csv.is_file()
        with asked.csv.open("a", newline="") as file:
            writer = csv.writer(file)
            if not there:
                writer.writerow(["recipe", "seed", "figures"])
            writer.writerow([name, seed, json.dumps(line)])

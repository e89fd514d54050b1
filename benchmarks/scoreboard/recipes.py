"""The recipes beside their bars, by several seeds: every seed with the same settings, as a process of its own.

python -m benchmarks.scoreboard.recipes --raw ../shared/data --data .cache/scoreboard --workers 4
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.gpu.results import device_name, file_name
from benchmarks.scoreboard.archives import prepare
from benchmarks.scoreboard.sets import SETS

ROOT = Path(__file__).resolve().parents[2]
KIND = "recipe-seeds"
COLUMNS = ("recipe", "set", "seed", "metric", "value", "steps", "seconds", "device", "torch", "workers", "note")

Row = dict[str, str]


@dataclass(frozen=True)
class Bar:
    """What a recipe must reach. `data` is below the folder of published sets; "" is the folder of the archives."""

    recipe: str
    set: str
    data: str
    metric: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def wanted(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return f"≤ {self.at_most:g}" if self.at_most is not None else "–"

    def is_met(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


BARS = (
    Bar("shakespeare_char", "shakespeare_char", "tinyshakespeare/input.txt", "valid_loss", at_most=1.46),
    Bar("wikitext2", "wikitext2", "wikitext2", "test_sliding", at_most=64.7),
    Bar("multi30k", "multi30k", "multi30k", "test_bleu_lower", at_least=41.5),
    Bar("california", "california", "tabular/california_housing/cal_housing.data.xz", "test_rmse", at_most=0.459),
    Bar("adult", "adult", "", "test_accuracy", at_least=0.8587),
    Bar("fashion_mnist", "fashion_mnist", "fashion_mnist", "test_accuracy", at_least=0.945),
    Bar("cifar10", "cifar10", "", "test_accuracy"),
    Bar("textcls", "sst2", "", "test_accuracy", at_least=0.80),
    Bar("textcls", "trec", "", "test_accuracy", at_least=0.882),
    Bar("ewt", "ewt", "", "test_accuracy", at_least=0.95),
    Bar("etth1", "etth1", "ett/ETTh1.csv.xz", "mse", at_most=0.370),
    Bar("fsdd", "fsdd", "fsdd/fsdd.tar.xz", "test_accuracy", at_least=0.98),
    Bar("easy_vqa", "easy_vqa", "easy_vqa/easy_vqa.tar.xz", "test_accuracy", at_least=0.995),
    Bar("scitldr", "scitldr", "scitldr_a", "test_best_rouge_1"),
    Bar("bccd", "bccd", "", "test_ap50"),
)
# The sets that recipes read as archives.
ARCHIVED = {"adult": ("adult",), "bccd": ("bccd",), "cifar10": ("cifar",), "ewt": ("ewt",), "textcls": ("sst2", "trec")}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True, help="the folder with the published sets")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the archives; made where missing")
    parser.add_argument("--only", nargs="+", metavar="RECIPE", help="some of the recipes, in this order")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, which share the device")
    parser.add_argument("--csv", type=Path, help="the file of figures; one in benchmarks/results if not given")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="PATH=VALUE")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    recipes = list(dict.fromkeys(bar.recipe for bar in BARS))
    unknown = [name for name in arguments.only or () if name not in recipes]
    if unknown:
        raise SystemExit(f"error: {', '.join(unknown)} has no bar; there are {', '.join(recipes)}")
    needed = {name for recipe in arguments.only or recipes for name in ARCHIVED.get(recipe, ())}
    for one in SETS:
        if one.name in needed:
            prepare(arguments.raw, arguments.data, one)
    path = arguments.csv or ROOT / "benchmarks" / "results" / file_name(KIND)
    with ThreadPoolExecutor(arguments.workers) as pool:
        waiting = [pool.submit(run_recipe, name, seed, arguments)
                   for name in arguments.only or recipes for seed in arguments.seeds]  # fmt: skip
        for done in as_completed(waiting):
            for row in done.result():
                append(path, row)
                print(f"{row['set']:<18} seed {row['seed']}  {row['metric']} {row['value'] or row['note']}", flush=True)
    print("\n".join(table(read(path))))


def run_recipe(name: str, seed: int, arguments: argparse.Namespace) -> list[Row]:
    """One seed of a recipe: a row for each of its sets; whatever goes wrong is their note."""
    bars = [bar for bar in BARS if bar.recipe == name]
    same = {"recipe": name, "seed": str(seed), "device": device_name(), "torch": torch.__version__,
            "workers": str(arguments.workers)}  # fmt: skip
    data = (arguments.raw / bars[0].data if bars[0].data else arguments.data).resolve()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        lines = Path(scratch) / "lines.csv"
        words = [sys.executable, str(ROOT / "recipes" / f"{name}.py"), "--data", str(data), "--seeds", str(seed),
                 "--device", arguments.device, "--out", scratch, "--csv", str(lines),
                 *(word for one in arguments.settings for word in ("--set", one))]  # fmt: skip
        places = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(words, env=os.environ | {"PYTHONPATH": os.pathsep.join(places)}, text=True,
                              capture_output=True, check=False)  # fmt: skip
        found = read_lines(lines)
    error = (done.stderr.strip().splitlines() or ["no line of figures"])[-1][:200]
    rows = []
    for bar in bars:
        figures = found.get(bar.set, {})
        value = figures.get(bar.metric)
        rows.append(same | {
            "set": bar.set, "metric": bar.metric, "value": "" if value is None else f"{value:.6g}",
            "steps": str(figures.get("steps", "")), "note": "" if value is not None else error,
            "seconds": str(figures.get("seconds", f"{time.monotonic() - began:.0f}")),
        })  # fmt: skip
    return rows


def read_lines(path: Path) -> dict[str, dict[str, float]]:
    """What `report` of the recipes wrote, by its name."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["recipe"]: json.loads(row["figures"]) for row in csv.DictReader(file)}


def append(path: Path, row: Row) -> None:
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def read(path: Path) -> list[Row]:
    """The rows; of one that was run again the later."""
    with path.open(newline="", encoding="utf-8") as file:
        return list({(row["set"], row["seed"]): row for row in csv.DictReader(file)}.values())


def table(rows: list[Row]) -> list[str]:
    """A line for every set that was run: the mean of its seeds, the lowest and the highest, and its bar."""
    lines = [
        "| recipe | set | measure | mean | lowest to highest | seeds | bar | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for bar in BARS:
        mine = [row for row in rows if row["set"] == bar.set]
        values = sorted(float(row["value"]) for row in mine if row["value"])
        link = f"[{bar.recipe}](../recipes/{bar.recipe}.py)"
        if values:
            mean = sum(values) / len(values)
            met = "" if bar.wanted == "–" else "met" if bar.is_met(mean) else "missed"
            cells = [link, bar.set, bar.metric, f"{mean:.4g}", f"{values[0]:.4g} to {values[-1]:.4g}",
                     str(len(values)), bar.wanted, met]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
        elif mine:
            lines.append(f"| {link} | {bar.set} | {bar.metric} | failed: {mine[0]['note']} | | 0 | {bar.wanted} | |")
    return lines


if __name__ == "__main__":
    main()

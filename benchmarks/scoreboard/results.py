"""The CSV of the scoreboard: a row for every set and seed, written as soon as it is known."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "results"
KIND, BASELINES = "scoreboard", "baselines"
COLUMNS = ("set", "seed", "task", "metric", "ours", "low", "high", "trivial", "strong", "strong_name",
           "difference_low", "difference_high", "published_ours", "train_rows", "model", "steps", "minutes", "budget",
           "device", "torch", "workers", "settings", "note")  # fmt: skip

Row = dict[str, str]


def append(path: Path, row: Row) -> None:
    """Add a row at the end of the file; a run that is cut short keeps what it had."""
    fresh = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def read(path: Path) -> list[Row]:
    """The rows of a file; where a set was run again with the same seed, the later row in the place of the earlier."""
    with path.open(newline="", encoding="utf-8") as file:
        return list({(row["set"], row["seed"]): row for row in csv.DictReader(file)}.values())


def in_order(folder: Path = FOLDER, kind: str = KIND) -> list[Path]:
    """The files of a kind by the date in their names; a GPU's behind a CPU's of the same day."""
    return sorted(
        folder.glob(f"torch*-{kind}.csv"),
        key=lambda path: (re.findall(r"\d{4}-\d\d-\d\d", path.name)[-1:], "-cuda" in path.name),
    )


def newest(folder: Path = FOLDER, kind: str = KIND) -> Path | None:
    """The latest file of a kind."""
    return next(reversed(in_order(folder, kind)), None)


def latest_rows(paths: Sequence[Path]) -> tuple[list[Row], dict[str, Path]]:
    """The rows of every set from the latest of these files that has them, and which file that is."""
    found: dict[str, list[Row]] = {}
    source: dict[str, Path] = {}
    for path in paths:
        rows = read(path)
        for name in dict.fromkeys(row["set"] for row in rows):
            found[name], source[name] = [row for row in rows if row["set"] == name], path
    return [row for rows in found.values() for row in rows], source


def with_whole_baselines(rows: list[Row], whole: list[Row]) -> list[Row]:
    """The rows, with baselines that learned from all training rows in the place of those that had no time to."""
    known = {(row["set"], row["seed"], row["metric"]): row for row in whole if row["strong"]}
    found = []
    for row in rows:
        better = known.get((row["set"], row["seed"], row["metric"]))
        if better is not None and (not row["strong"] or " of " in row["strong_name"]):
            taken = {name: better[name] for name in ("trivial", "strong", "strong_name")}
            row = row | taken | {"difference_low": "", "difference_high": ""}
        found.append(row)
    return found

"""What an attacker or a failing disk can do, in full size; figures go to benchmarks/results/attack-proof-DATE.csv.

    make prove-attack                              all of it (about an hour)
    make prove-attack ARGS="--small"               everything in small sizes, to see that it runs (minutes)
    make prove-attack ARGS="--only arrow disks"    some of it

arrow      damaged Arrow, Feather and Parquet files: read or refused, no process dies
disks      trainings, predictions and conversions on disks with too little room: exit 4 and one line
framing    requests whose framing has no end (trailers, chunk extensions, headers): memory stays bounded
folders    model folders with every value of every file spoiled: one line within 5 s and 1 GB
runs       run folders with every file damaged, under every verb that opens one: one line
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as in tests/conftest.py
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

from tests.attack import arrow_fuzz, full_disk, model_folders, trailers
from tests.serving.folders import Folders
from tests.serving.server import KEY, Server

ROOT = Path(__file__).resolve().parents[2]


class Figure(NamedTuple):
    """One kind of attack: how often it was tried, how often it did what it must not, and the worst seen."""

    proof: str
    case: str
    tries: int
    bad: int
    worst: str = ""


def prove_arrow(small: bool) -> list[Figure]:
    rows = arrow_fuzz.fuzz(100 if small else 4000, seed=1)
    return [Figure("arrow", row.kind, row.tries, len(row.bad), "; ".join(row.bad[:1])) for row in rows]


def prove_disks(small: bool) -> list[Figure]:
    rows = full_disk.sweep(tries=4 if small else 48)
    return [Figure("disks", row.case, row.tries, len(row.bad), "; ".join(row.bad[:1])) for row in rows]


def prove_framing(small: bool) -> list[Figure]:
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Folders(Path(place))["writer"]
        for key in (KEY, None):
            for case in trailers.CASES[:3] if small else trailers.CASES:
                # A server for each: memory that one has made room for would hide the growth of the next.
                with Server(folder, env={} if key is None else {"ANYFORMER_API_KEY": key}) as server:
                    one = trailers.attack(server, case, (4 if small else 60) * 2**20, at_once=4)
                name = f"{one.case}, {'with' if key else 'without'} a key"
                found.append(Figure("framing", name, one.tries, one.bad, f"{one.growth:.1f} MB"))
    return found


def prove_folders(small: bool) -> list[Figure]:
    figures = model_folders.attack(60 if small else 3000, seed=1)
    return [Figure("folders", name, tries, bad) for name, (tries, bad) in sorted(figures.items())]


def prove_runs(small: bool) -> list[Figure]:
    """The battery of the tests is whole; each of its tests counts as a case."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/training/run/test_damaged_runs.py"]
    done = subprocess.run([*words, *(["-x"] if small else [])], cwd=ROOT, capture_output=True, text=True)
    return [
        Figure("runs", "every file x every damage x every verb", 1, int(done.returncode != 0), last_line(done.stdout))
    ]


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else ""


PROOFS: dict[str, Callable[[bool], list[Figure]]] = {
    "arrow": prove_arrow, "disks": prove_disks, "framing": prove_framing, "folders": prove_folders, "runs": prove_runs,
}  # fmt: skip


def write_figures(path: Path, found: list[Figure], proofs: list[str]) -> None:
    """The figures of these proofs; those of others in the file stay."""
    with path.open(newline="", encoding="utf-8") if path.is_file() else contextlib.nullcontext([]) as file:
        kept = [row for row in list(csv.reader(file))[1:] if row[0] not in proofs]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([Figure._fields, *kept, *found])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small sizes; nothing is written to benchmarks/results")
    parser.add_argument("--only", nargs="*", choices=list(PROOFS), default=list(PROOFS))
    given = parser.parse_args()
    found: list[Figure] = []
    for name in given.only:
        began = time.monotonic()
        made = PROOFS[name](given.small)
        found += made
        tries, bad = sum(one.tries for one in made), sum(one.bad for one in made)
        print(f"{name}: {tries:,} tries, {bad} bad, {time.monotonic() - began:.0f} s", flush=True)
        for one in made:
            if one.bad:
                print(f"  BAD {one.case}: {one.bad} of {one.tries} {one.worst}", flush=True)
    if not given.small:
        path = ROOT / "benchmarks" / "results" / f"attack-proof-{datetime.date.today()}.csv"
        write_figures(path, found, given.only)
        print(f"figures: {path.relative_to(ROOT)}")
    return int(any(one.bad for one in found))


if __name__ == "__main__":
    raise SystemExit(main())

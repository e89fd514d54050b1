"""Everything that is promised about serving, in full size, against real server processes.

    make prove-serve                        all proofs (about 20 minutes), but the hour of soak
    make prove-serve ARGS="--only soak"     some of them
    make prove-serve ARGS="--hour"          with the soak of an hour
    make prove-serve ARGS="--small"         everything in small sizes, to see that it runs

Each figure stands beside its bar; all of them are written to benchmarks/results/serve-proof-DATE.csv.
Nothing else should run on the machine meanwhile: some of the bars are times.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # as in tests/conftest.py
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

from tests.serving import company, disconnects, ending, fuzz, overload, slow, soak
from tests.serving.figures import Figure, Figures
from tests.serving.folders import Folders
from tests.serving.server import Server

ROOT = Path(__file__).parents[2]


@dataclass
class Setting:
    """What all proofs share."""

    folders: Folders
    place: Path
    small: bool = False
    hour: bool = False

    def size(self, whole: int, small: int) -> int:
        return small if self.small else whole


def fuzzed(given: Setting) -> Figures:
    with Server(given.folders["talker"], "--max-batch-size", "128", "--context", "40") as server:
        found, said = fuzz.prove(server, given.place, cases=given.size(20_000, 1_000), examples=given.size(600, 60),
                                 rounds=given.size(40, 4), workers=2, timeout=1800)  # fmt: skip
    if not all(figure.ok for figure in found):
        print(said)
    return found


def hung_up(given: Setting) -> Figures:
    with Server(given.folders["patient"], "--max-batch-size", "8") as server:
        return disconnects.prove(server, total=given.size(500, 50), together=given.size(10, 5))


def slow_lines(given: Setting) -> Figures:
    with Server(given.folders["patient"], "--max-batch-size", "64", "--queue-tokens", "200000") as server:
        return slow.prove(server, senders=given.size(200, 20), readers=given.size(50, 4), asked=given.size(200, 30),
                          ratio=1.2, reading=True)  # fmt: skip


def overloaded(given: Setting) -> Figures:
    with Server(given.folders["writer"], "--max-batch-size", "16", "--queue-tokens", "640") as server:
        return overload.prove(server, rows=16, clients=256, seconds=given.size(60, 8))


def ended(given: Setting) -> Figures:
    found = ending.prove_end(given.folders["writer"], clients=32, grace=30, tokens=200)
    found += ending.prove_late(given.folders["patient"], grace=2)
    return found


def hanging(given: Setting) -> Figures:
    return ending.prove_hang(given.folders["patient"], patience=40)


def isolated(given: Setting) -> Figures:
    return company.prove_fault(given.folders["writer"], count=100)


def soaked(given: Setting) -> Figures:
    with Server(given.folders["talker"], "--max-batch-size", "16") as server:
        found = soak.prove(server, seconds=given.size(60, 16), growth=given.size(6, 60))
    if given.hour:
        with Server(given.folders["talker"], "--max-batch-size", "16") as server:
            found += soak.prove(server, seconds=3600, growth=0.25)
    return found


def in_company(given: Setting) -> Figures:
    with Server(given.folders["writer"], "--max-batch-size", "32") as server:
        found = company.prove(server, count=given.size(320, 32))
    with Server(given.folders["writer"], "--max-batch-size", "32", "--strict") as server:
        found += company.prove(server, count=given.size(160, 32), bits=True)
    return found


PROOFS: dict[str, Callable[[Setting], Figures]] = {
    "fuzz": fuzzed,
    "disconnects": hung_up,
    "slow": slow_lines,
    "overload": overloaded,
    "shutdown": ended,
    "hang": hanging,
    "isolation": isolated,
    "company": in_company,
    "soak": soaked,
}


def write(path: Path, figures: list[Figure]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["proof", "figure", "bar", "value", "ok"])
        writer.writerows([f.proof, f.figure, f.bar, f"{f.value:.6g}", "yes" if f.ok else "no"] for f in figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(PROOFS), help="some of the proofs")
    parser.add_argument("--small", action="store_true", help="small sizes, written nowhere")
    parser.add_argument("--hour", action="store_true", help="also the soak of an hour")
    parser.add_argument("--out", type=Path, help="the file for the figures")
    asked = parser.parse_args()
    name = f"serve-proof-{datetime.date.today().isoformat()}.csv"
    out = asked.out or (None if asked.small or asked.only else ROOT / "benchmarks" / "results" / name)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as place:
        given = Setting(Folders(Path(place)), Path(place), asked.small, asked.hour)
        for proof, prove in PROOFS.items():
            if asked.only and proof not in asked.only:
                continue
            began = time.monotonic()
            some = prove(given)
            figures += some
            print(*some, f"    {proof}: {time.monotonic() - began:.0f} s", sep="\n", flush=True)
            if out is not None:
                write(out, figures)  # after each: a proof that breaks off leaves the others' figures
    missed = [figure for figure in figures if not figure.ok]
    print(f"{len(figures)} figures, {len(missed)} missed" + (f"; {out}" if out else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs a claim case by case and keeps each result, so that a stopped run goes on where it was."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anyformer.lab.claim import Case, Claim, Finding, Measurements
from anyformer.safe_files import replace_file


@dataclass(frozen=True)
class ClaimRun:
    """A claim that was run: its finding, its measurements, and how long the measurements took."""

    claim: Claim
    full: bool
    finding: Finding
    measurements: Measurements
    seconds: float
    torch: str

    def to_dict(self) -> dict[str, Any]:
        """All figures as JSON."""
        return {
            "name": self.claim.name, "claim": self.claim.claim, "lecture": self.claim.lecture,
            "source": self.claim.source, "quoted": self.claim.quoted, "method": self.claim.method,
            "measured": self.finding.measured, "verdict": self.finding.verdict.value, "reason": self.finding.reason,
            "full": self.full, "seconds": self.seconds, "torch": self.torch,
            "cases": [{"case": dict(case), "result": dict(result)} for case, result in self.measurements.entries],
        }  # fmt: skip


def fingerprint(claim: Claim) -> str:
    """A short hash of the file that measures: results of another version of it are not mixed with today's."""
    source = Path(inspect.getfile(claim.measure)).read_bytes()
    return hashlib.sha256(source).hexdigest()[:12]


def results_file(claim: Claim, folder: Path, *, full: bool) -> Path:
    """Where the results of a claim's cases are kept."""
    return folder / f"{claim.name}{'-full' if full else ''}.json"


def run_claim(
    claim: Claim, folder: Path, *, full: bool = False, progress: Callable[[str], None] = lambda text: None
) -> ClaimRun:
    """Measure every case that has no result yet, judge all of them, and keep both in `folder`."""
    path, version = results_file(claim, folder, full=full), fingerprint(claim)
    kept = read_results(path, version)
    entries, seconds, cases = [], 0.0, list(claim.cases(full))
    for number, case in enumerate(cases, 1):
        key = json.dumps(case, sort_keys=True)
        if key not in kept:
            progress(f"{claim.name}  {number} of {len(cases)}  {describe(case)}")
            began = time.perf_counter()
            result = dict(claim.measure(case))
            kept[key] = {"case": dict(case), "result": result, "seconds": time.perf_counter() - began}
            write_results(path, version, kept)
        entries.append((case, kept[key]["result"]))
        seconds += kept[key]["seconds"]
    measurements = Measurements(entries)
    return ClaimRun(claim, full, claim.judge(measurements), measurements, seconds, torch.__version__)


def finished_runs(claims: Iterable[Claim], folder: Path, *, full: bool) -> tuple[list[ClaimRun], list[str]]:
    """The claims whose cases all have results, judged anew, and the names of the others. Nothing is measured."""
    runs, missing = [], []
    for claim in claims:
        kept = read_results(results_file(claim, folder, full=full), fingerprint(claim))
        cases = list(claim.cases(full))
        if all(json.dumps(case, sort_keys=True) in kept for case in cases):
            runs.append(run_claim(claim, folder, full=full))
        else:
            missing.append(claim.name)
    return runs, missing


def read_results(path: Path, version: str) -> dict[str, dict[str, Any]]:
    """The kept results of this version of the claim, by their case; none where there are none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    if held.get("version") != version or held.get("torch") != torch.__version__:
        return {}
    return {json.dumps(entry["case"], sort_keys=True): entry for entry in held["results"]}


def write_results(path: Path, version: str, kept: dict[str, dict[str, Any]]) -> None:
    """Keep all results, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {"version": version, "torch": torch.__version__, "platform": sys.platform, "results": list(kept.values())}
    replace_file(path, json.dumps(held, indent=1) + "\n")


def describe(case: Case) -> str:
    """A case for people: `seed 0, place pre`."""
    return ", ".join(f"{name} {value}" for name, value in case.items())

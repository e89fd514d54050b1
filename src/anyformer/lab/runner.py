"""Runs a claim case by case and stores each result, so that a stopped run can resume."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anyformer.lab.claim import Case, Claim, Finding, Measurements
from anyformer.lab.fingerprint import fingerprint
from anyformer.lab.measure import measured
from anyformer.log import Log, silence
from anyformer.safe_files import replace_file


@dataclass(frozen=True)
class ClaimRun:
    """A claim that was run: its finding, its measurements, and their time on one core in seconds.

    Those are the processor's where they are kept, else the clock's.
    """

    claim: Claim
    full: bool
    finding: Finding
    measurements: Measurements
    seconds: float
    torch: str

    def to_dict(self) -> dict[str, Any]:
        """All results as JSON-compatible data."""
        return {
            "name": self.claim.name, "claim": self.claim.claim, "lecture": self.claim.lecture,
            "source": self.claim.source, "quoted": self.claim.quoted, "method": self.claim.method,
            "measured": self.finding.measured, "verdict": self.finding.verdict.value, "reason": self.finding.reason,
            "full": self.full, "seconds": self.seconds, "torch": self.torch,
            "cases": [{"case": dict(case), "result": dict(result)} for case, result in self.measurements.entries],
        }  # fmt: skip


def results_file(claim: Claim, folder: Path, *, full: bool) -> Path:
    """The file with the results of a claim's cases."""
    return folder / f"{claim.name}{'-full' if full else ''}.json"


def run_claim(
    claim: Claim,
    folder: Path,
    *,
    full: bool = False,
    workers: int = 1,
    log: Log = silence,
) -> ClaimRun:
    """Measure every case without a stored result, in parallel, store the results in `folder`, and judge them."""
    path, version = results_file(claim, folder, full=full), fingerprint(claim)
    cases = list(claim.cases(full))
    wanted = {case_key(case) for case in cases}
    kept = {key: entry for key, entry in read_results(path, version).items() if key in wanted}
    missing = [case for case in cases if case_key(case) not in kept]
    for case, result, seconds, processor in measured(claim, missing, workers):
        kept[case_key(case)] = {"case": dict(case), "result": result, "seconds": seconds, "processor": processor}
        write_results(path, version, kept)
        log(f"{claim.name}  {len(kept)} of {len(cases)}  {describe(case)}")
    return judge_kept(claim, kept, full=full, measured_by=torch.__version__)


def judge_kept(claim: Claim, kept: Mapping[str, Mapping[str, Any]], *, full: bool, measured_by: str) -> ClaimRun:
    """Judge a complete set of stored results; `measured_by` is the version of torch that measured them."""
    entries = [kept[case_key(case)] for case in claim.cases(full)]
    measurements = Measurements([(entry["case"], entry["result"]) for entry in entries])
    seconds = sum(entry.get("processor", entry["seconds"]) for entry in entries)
    return ClaimRun(claim, full, claim.judge(measurements), measurements, seconds, measured_by)


def finished_runs(
    claims: Iterable[Claim], folder: Path, *, full: bool, any_torch: bool = False
) -> tuple[list[ClaimRun], list[str]]:
    """The claims with complete results, judged again, and the names of the others. Nothing is measured.

    Results of another version of torch do not count, unless `any_torch` is set.
    """
    runs, missing = [], []
    for claim in claims:
        path, version = results_file(claim, folder, full=full), fingerprint(claim)
        measured_by = read_held(path).get("torch", "") if any_torch else torch.__version__
        kept = read_results(path, version, measured_by)
        if all(case_key(case) in kept for case in claim.cases(full)):
            runs.append(judge_kept(claim, kept, full=full, measured_by=measured_by))
        else:
            missing.append(claim.name)
    return runs, missing


def case_key(case: Case) -> str:
    """The key of a case, as text."""
    return json.dumps(case, sort_keys=True)


def read_results(path: Path, version: str, measured_by: str | None = None) -> dict[str, dict[str, Any]]:
    """Stored results of this version of the claim and of this torch (or the given one), by case key."""
    held = read_held(path)
    if held.get("version") != version or held.get("torch") != (measured_by or torch.__version__):
        return {}
    return {case_key(entry["case"]): entry for entry in held["results"]}


def read_held(path: Path) -> dict[str, Any]:
    """A results file of any version; empty if missing."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return held if isinstance(held, dict) else {}


def write_results(path: Path, version: str, kept: dict[str, dict[str, Any]]) -> None:
    """Store all results atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {"version": version, "torch": torch.__version__, "platform": sys.platform, "results": list(kept.values())}
    replace_file(path, json.dumps(held, indent=1) + "\n")


def describe(case: Case) -> str:
    """A case in readable form: `seed 0, place pre`."""
    return ", ".join(f"{name} {value}" for name, value in case.items())

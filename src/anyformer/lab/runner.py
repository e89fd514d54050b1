"""Runs a claim case by case and keeps each result, so that a stopped run goes on where it was."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from anyformer.lab.claim import Case, Claim, Finding, Measurements
from anyformer.lab.measure import measured
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
    """A short hash of the code that measures: results of another version of it are not mixed with today's.

    That is the claim's file and whatever of the lab it imports. Comments, sentences and layout do not count; nor
    does the rest of the library, whose changes must not change what a part computes.
    """
    files = measuring_files(Path(inspect.getfile(claim.measure)))
    return hashlib.sha256("".join(map(code_of, files)).encode()).hexdigest()[:12]


def measuring_files(start: Path) -> list[Path]:
    """A file, and those of the lab that it imports, directly or through another: the first, then by name."""
    found, waiting = {start}, [start]
    while waiting:
        for node in ast.walk(ast.parse(waiting.pop().read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("anyformer.lab."):
                spec = find_spec(node.module)
                path = Path(spec.origin) if spec is not None and spec.origin else start
                if path.name != "claim.py" and path not in found:  # what a claim is says nothing of its figures
                    found.add(path)
                    waiting.append(path)
    return [start, *sorted(found - {start})]


def code_of(path: Path) -> str:
    """A file's code, without comments, documentation and the sentences of its claim."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == Claim.__name__:
            node.keywords = [word for word in node.keywords if word.arg in ("cases", "measure", "judge")]
    return ast.dump(tree)


def results_file(claim: Claim, folder: Path, *, full: bool) -> Path:
    """Where the results of a claim's cases are kept."""
    return folder / f"{claim.name}{'-full' if full else ''}.json"


def run_claim(
    claim: Claim,
    folder: Path,
    *,
    full: bool = False,
    workers: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> ClaimRun:
    """Measure every case that has no result yet, on so many cores, keep the results in `folder`, and judge them."""
    path, version = results_file(claim, folder, full=full), fingerprint(claim)
    kept = read_results(path, version)
    cases = list(claim.cases(full))
    missing = [case for case in cases if case_key(case) not in kept]
    for case, result, seconds in measured(claim, missing, workers):
        kept[case_key(case)] = {"case": dict(case), "result": result, "seconds": seconds}
        write_results(path, version, kept)
        progress(f"{claim.name}  {len(kept)} of {len(cases)}  {describe(case)}")
    return judge_kept(claim, kept, full=full, measured_by=torch.__version__)


def judge_kept(claim: Claim, kept: Mapping[str, Mapping[str, Any]], *, full: bool, measured_by: str) -> ClaimRun:
    """The verdict on results that are all there; `measured_by` is the version of torch that measured them."""
    entries = [kept[case_key(case)] for case in claim.cases(full)]
    measurements = Measurements([(entry["case"], entry["result"]) for entry in entries])
    seconds = sum(entry["seconds"] for entry in entries)
    return ClaimRun(claim, full, claim.judge(measurements), measurements, seconds, measured_by)


def finished_runs(
    claims: Iterable[Claim], folder: Path, *, full: bool, any_torch: bool = False
) -> tuple[list[ClaimRun], list[str]]:
    """The claims whose cases all have results, judged anew, and the names of the others. Nothing is measured.

    Results of another version of torch do not count, unless `any_torch` takes them as they are.
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
    """What tells the cases of a claim apart, as text."""
    return json.dumps(case, sort_keys=True)


def read_results(path: Path, version: str, measured_by: str | None = None) -> dict[str, dict[str, Any]]:
    """The kept results of this version of the claim, by this torch or the one given, by their case."""
    held = read_held(path)
    if held.get("version") != version or held.get("torch") != (measured_by or torch.__version__):
        return {}
    return {case_key(entry["case"]): entry for entry in held["results"]}


def read_held(path: Path) -> dict[str, Any]:
    """A file of results, whoever measured them; empty where there is none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return held if isinstance(held, dict) else {}


def write_results(path: Path, version: str, kept: dict[str, dict[str, Any]]) -> None:
    """Keep all results, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {"version": version, "torch": torch.__version__, "platform": sys.platform, "results": list(kept.values())}
    replace_file(path, json.dumps(held, indent=1) + "\n")


def describe(case: Case) -> str:
    """A case for people: `seed 0, place pre`."""
    return ", ".join(f"{name} {value}" for name, value in case.items())

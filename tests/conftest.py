"""What every test shares: one thread a worker, no network, seconds by folder and cells counted in the summary."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch is imported anywhere: two workers on two cores must not ask for four threads.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("MKL_NUM_THREADS", "1")
# Virtual machines may report AMX and then not allow it: bf16 products die there of an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Other people's libraries are yardsticks here; none of them may look for a model on the network.
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

from tests.training.nursery import Nursery

# Seconds a folder may take in `make test`, summed over the workers. A report, never a failure.
BUDGETS = {
    "inspection": 280,
    "data + training": 580,
    "docs": 250,
    "laws": 240,
    "serving": 200,
    "cli": 130,
    "tasks": 100,
    "generation": 130,
    "families": 100,
    "reference": 100,
}
SHARED = {"data": "data + training", "training": "data + training", "browser": "inspection"}
WHOLE = 1500  # wall clock of everything, on 2 cores
QUICK = 60  # wall clock of `make quick`

# Folders whose every test belongs to the quick tier; elsewhere a test says so by @pytest.mark.quick.
QUICK_FOLDERS = {"repository"}

CELLS = pytest.StashKey[Counter]()
STARTED = pytest.StashKey[float]()


@pytest.fixture(scope="session")
def cells(request: pytest.FixtureRequest) -> Counter:
    """Counts that the summary prints: `cells["laws", "run"] += 1`, `cells["laws", "refused"] += 1`.

    Each worker counts its own; the sums are put together at the end. A bare string counts for the laws.
    """
    return request.config.stash[CELLS]


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Real processes without the seconds of importing torch; it starts when the first test of a worker asks for it."""
    with Nursery() as running:
        yield running


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget-file", metavar="PATH", help="add seconds and cells to this file; the summary shows its sums"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[CELLS] = Counter()
    config.stash[STARTED] = time.perf_counter()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In the phase of the tests that run alone the files of the others are not even imported."""
    if config.getoption("-m") != "alone" or not re.fullmatch(r"test_.*\.py", collection_path.name):
        return None
    return None if "mark.alone" in collection_path.read_text(encoding="utf-8") else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if folder(item.nodeid) in QUICK_FOLDERS and item.get_closest_marker("alone") is None:
            item.add_marker(pytest.mark.quick)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands its counts to the controller; only plain lists travel."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["cells"] = flat(session.config.stash[CELLS])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """The controller adds up what a worker counted; a worker that crashed has nothing to hand over."""
    output: dict[str, Any] = getattr(node, "workeroutput", None) or {}
    add(node.config.stash[CELLS], output.get("cells", []))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if getattr(config, "workerinput", None) is not None:
        return  # a worker has a summary too, which nobody sees; the controller has all reports
    seconds: Counter = Counter()
    tests: Counter = Counter()
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            seconds[folder(report.nodeid)] += report.duration
            tests[folder(report.nodeid)] += report.when == "call"
    wall = time.perf_counter() - config.stash[STARTED]
    counts = Counter(config.stash[CELLS])

    path = config.getoption("--budget-file")
    if path:
        earlier = json.loads(Path(path).read_text()) if Path(path).exists() else {}
        seconds.update(earlier.get("seconds", {}))
        tests.update(earlier.get("tests", {}))
        add(counts, earlier.get("cells", []))
        wall += earlier.get("wall", 0.0)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"seconds": seconds, "tests": tests, "cells": flat(counts), "wall": wall}))

    terminalreporter.section("seconds by folder")
    quick = config.getoption("-m") and "quick" in config.getoption("-m")
    for line in table(seconds, tests, wall, QUICK if quick else WHOLE):
        terminalreporter.write_line(line)
    for line in cell_lines(counts):
        terminalreporter.write_line(line)


def folder(nodeid: str) -> str:
    """First folder under tests/: tests/laws/test_cache.py::test_x -> laws."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else "tests"


def table(seconds: Counter, tests: Counter, wall: float, limit: float) -> list[str]:
    """Seconds beside the budget, one line a folder."""
    rows: dict[str, list[float]] = {}
    for name in seconds:
        row = rows.setdefault(SHARED.get(name, name), [0.0, 0])
        row[0] += seconds[name]
        row[1] += tests[name]
    lines = [f"{'folder':<18}{'tests':>7}{'seconds':>10}{'budget':>9}"]
    for name, (spent, number) in sorted(rows.items()):
        lines.append(f"{name:<18}{number:>7}{spent:>10.1f}{BUDGETS.get(name, '-'):>9}{over(spent, BUDGETS.get(name))}")
    lines.append(f"{'wall clock':<18}{sum(tests.values()):>7}{wall:>10.1f}{limit:>9}{over(wall, limit)}")
    return lines


def over(spent: float, budget: float | None) -> str:
    return f"  over by {spent - budget:.0f} s" if budget is not None and spent > budget else ""


def cell_lines(counts: Counter) -> list[str]:
    """`laws: 1234 cells run, 56 refused`, one line a group, the cells that ran first."""
    groups: dict[str, dict[str, int]] = {}
    for group, outcome, number in flat(counts):
        groups.setdefault(group, {})[outcome] = number
    lines = []
    for group, outcomes in sorted(groups.items()):
        ran = outcomes.pop("run", 0)
        rest = [f"{number} {outcome}" for outcome, number in sorted(outcomes.items())]
        lines.append(f"{group}: " + ", ".join([f"{ran} cells run", *rest]))
    return lines


def flat(counts: Counter) -> list[list[Any]]:
    """A counter as a plain list of [group, outcome, number]."""
    total: Counter = Counter()
    for key, number in counts.items():
        total[key if isinstance(key, tuple) else ("laws", key)] += number
    return [[group, outcome, number] for (group, outcome), number in sorted(total.items())]


def add(counts: Counter, listed: list[list[Any]]) -> None:
    for group, outcome, number in listed:
        counts[group, outcome] += number

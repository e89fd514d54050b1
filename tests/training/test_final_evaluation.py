"""The end of a run whose time is up: fewer rows are judged, the baselines see the same ones, and everything says so."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.reopen import reopen
from anyformer.training.duration import GRACE, LEAST_ROWS, MARGIN, Budget
from anyformer.training.run.folder import RunFolder
from anyformer.training.train import resume

CHANCE = random.Random(0)
COUNT = 3000
ROWS = {"size": [CHANCE.random() for _ in range(COUNT)]}
ROWS["sold"] = ["yes" if size > 0.5 else "no" for size in ROWS["size"]]  # type: ignore[misc]
SMALL = {"model.stack.depth": 1, "training.threads": 1, "data.split.valid": 0.2, "data.split.test": 0.2}


def trained(out: Path, **named: Any) -> anyformer.Run:
    return anyformer.train(ROWS, "classify", "ft-transformer-tiny", "sold", out=out, device="cpu", quiet=True,
                           settings=SMALL, **named)  # fmt: skip


@pytest.mark.quick
def test_rows_are_shared_out_by_the_time_that_is_left() -> None:
    budget = Budget(100.0, 0.1, 1.0, row=0.001, rows=20_000)
    assert budget.rows_in_time(50.0, 10_000, 0.001) == 10_000
    left = 100.0 - 80.0 - budget.closing
    assert budget.rows_in_time(80.0, 10_000, 0.01) == int(left / MARGIN / 0.01)
    # With as much still to come, this side gets a third of the time and leaves two thirds.
    assert budget.rows_in_time(80.0, 10_000, 0.01, after=100.0) == int(10_000 * left / MARGIN / 300)
    # Steps that ended late leave a grace, and however little that is, a few rows.
    assert budget.rows_in_time(97.0, 10_000, 0.0001) == 10_000
    assert budget.rows_in_time(97.0, 10_000, 0.01) == int(GRACE * 100.0 / MARGIN / 0.01)
    assert budget.rows_in_time(200.0, 10_000, 0.1) == LEAST_ROWS and budget.rows_in_time(200.0, 10, 0.01) == 10


def test_a_run_without_time_left_judges_a_few_rows_and_says_so(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", minutes=0.001)
    plan = run.folder.read_json("plan.json")
    judged = plan["evaluated"]
    # A fast machine judges some more in the grace that is left: .003 s of a budget of .06 s.
    assert all(LEAST_ROWS <= judged[side] <= 300 for side in ("valid", "test"))
    notes = run.evaluation["notes"]
    assert f"{judged['test']} of 600 test rows were evaluated: the time of the run was up" in notes
    assert run.evaluation["baselines"]["strong"] == {
        "name": "not learned: the time of the run was up", "metrics": {}, "seconds": 0.0,
    }  # fmt: skip
    # The control: without a limit all rows are judged, nothing is noted, and the learner learns.
    whole = trained(tmp_path / "whole", steps=2)
    assert not whole.evaluation["notes"] and whole.evaluation["baselines"]["strong"]["metrics"]
    assert sum(map(sum, whole.evaluation["facts"]["confusion"]["counts"])) == 600
    assert sum(map(sum, run.evaluation["facts"]["confusion"]["counts"])) == judged["test"]


def test_a_second_try_judges_the_same_rows(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", minutes=0.001)
    before = run.evaluation["metrics"]
    facts = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps(facts | {"status": "interrupted", "seconds": 0.0}))
    (run.path / "evaluation.json").unlink()
    resume(run.path, quiet=True)  # with all the time in the world: what was decided once stands
    assert run.evaluation["metrics"] == before


def test_some_rows_are_examples_of_their_own(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", steps=1)
    opened = reopen(RunFolder.open(run.path).cache)
    assert opened is not None and isinstance(opened.test, RowExamples)
    side, some = opened.test, opened.test.take(np.array([5, 3, 400]))
    assert len(some) == 3 and [some.cells(row) for row in range(3)] == [side.cells(row) for row in (5, 3, 400)]

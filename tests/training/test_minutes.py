"""`--minutes`: the plan follows the clock, and what was decided by the clock is repeated by a resume to the bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from anyformer.evaluation.baseline_time import expected_seconds
from anyformer.training.duration import WINDOW, Budget, Correction, Plan, Throughput
from anyformer.training.schedule import WSD, Constant, Cosine, InverseSqrt, Linear
from tests.training.nursery import Child, Nursery
from tests.training.tiny import differing, logged_lines, resume, write_data

# ---------------------------------------------------------------- the plan, by a clock of our own

STEP, EVALUATION, EVALUATED, ROWS = (
    0.05,
    0.2,
    100,
    1000,
)  # seconds on a quiet machine; rows judged meanwhile and at the end
ROW = EVALUATION / EVALUATED
CLOSING = 3.0  # seconds of baselines and report
SCHEDULES = [Cosine(), Linear(), Constant(), InverseSqrt(warmup=10), WSD()]


def trained(
    budget: Budget, planned: int, slower: Callable[[float], float], every: int = 40, late: int = 1, start: float = 4.0
) -> tuple[float, Plan]:
    """The loop of a session where everything takes `slower(now)` times as long; its seconds and its plan.

    `late` steps are looked at together, as on a GPU; the first step is done `start` seconds after the command.
    """
    plan, pace, now, done, seen = Plan(planned), Throughput(WINDOW * budget.seconds), start, 0, (0, start)
    while done < plan.total(done):
        now, done = now + STEP * slower(now), done + 1
        if done % late == 0 or done == plan.total(done):
            pace.stepped(done - seen[0], now - seen[1])
            if (found := budget.corrected(plan, done, now, pace, every)) is not None:
                plan.correct(found)
            seen = done, now
        if done % every == 0 or done == plan.total(done):
            took = EVALUATION * slower(now)
            now += took
            pace.evaluated_rows(EVALUATED, took)
            pace.evaluated(took)
            seen = seen[0], seen[1] + took
    assert pace.row is not None
    now += pace.row * budget.rows_in_time(now, ROWS, pace.row)
    return now + CLOSING, plan


MACHINES: dict[str, Callable[[float], float]] = {
    "quiet": lambda now: 1.0,
    "twice as slow after planning": lambda now: 2.0,
    "ten times as slow after planning": lambda now: 10.0,
    "ten times as fast after planning": lambda now: 0.1,
    "a neighbour comes": lambda now: 1.0 if now < 60 else 4.0,
    "a neighbour comes late": lambda now: 1.0 if now < 105 else 4.0,
    "a neighbour goes": lambda now: 6.0 if now < 60 else 1.0,
    "a neighbour comes and goes": lambda now: 5.0 if int(now / 7) % 2 else 1.0,
    "every hundredth step waits": lambda now: 30.0 if int(now / STEP) % 100 == 0 else 1.0,
}


@pytest.mark.quick
@pytest.mark.parametrize("late", [1, 10])
@pytest.mark.parametrize("machine", MACHINES)
def test_the_time_is_kept_and_used(machine: str, late: int) -> None:
    """Two minutes, from the start of the command to its end: within a tenth."""
    budget = Budget(120.0, STEP, EVALUATION, ROW, ROWS)
    seconds, plan = trained(budget, int(0.9 * 120 / STEP), MACHINES[machine], late=late)
    assert 0.9 * 120 <= seconds <= 1.1 * 120, (seconds, plan.corrections)
    assert len(plan.corrections) < 80
    places = [plan.place(step) for step in range(plan.total(10**9))]
    back = {one.step for one in plan.corrections if one.place is not None}
    assert all(a < b for step, (a, b) in enumerate(pairwise(places), 1) if step not in back)
    assert places[-1] < plan.position(10**9)[1]


@pytest.mark.quick
@pytest.mark.parametrize("late", [1, 10])
@pytest.mark.parametrize("times", [8, 100, 1000])
def test_a_trial_that_was_too_slow_does_not_end_the_run_early(times: float, late: int) -> None:
    """`--minutes 4` while other programs were busy in the trial alone: so few steps are planned that the last of them
    comes before anything is known of the pace."""
    budget = Budget(240.0, times * STEP, times * EVALUATION, times * ROW, ROWS)
    planned = max(2, int(0.8 * 240 / (times * STEP)))
    seconds, plan = trained(budget, planned, lambda now: 1.0, late=late)
    assert 0.9 * 240 <= seconds <= 1.1 * 240, (seconds, plan.corrections)
    assert plan.total(10**9) > 4000
    # The learning rate has its whole way down: a run that went on at the end of its schedule would learn nothing.
    rates = [plan.factor(Cosine(warmup=0), step) for step in range(plan.total(10**9))]
    assert 0.4 < sum(rates) / len(rates) < 0.6


@pytest.mark.quick
def test_control_without_corrections_the_time_is_missed() -> None:
    class Fixed(Budget):
        def corrected(self, *facts: Any) -> Correction | None:
            return None

    for machine, slow in (("ten times as slow after planning", True), ("ten times as fast after planning", False)):
        budget = Fixed(120.0, STEP, EVALUATION, ROW, ROWS)
        seconds, _ = trained(budget, int(0.9 * 120 / STEP), MACHINES[machine])
        assert seconds > 1.1 * 120 if slow else seconds < 0.8 * 120


@pytest.mark.quick
def test_many_rows_keep_time_for_the_learner_and_the_promise_holds() -> None:
    """A learner that uses what was kept for it ends within a tenth of the time; few rows keep what they always did."""
    few, many = (
        Budget(120.0, STEP, EVALUATION, ROW, ROWS, learning=expected_seconds(count)) for count in (354, 54_000)
    )
    assert few.closing == Budget(120.0, STEP, EVALUATION, ROW, ROWS).closing < 7
    assert 1.5 * few.closing < many.closing < 0.1 * 120
    seconds, plan = trained(many, int(0.9 * 120 / STEP), lambda now: 1.0)
    assert 0.9 * 120 <= seconds - CLOSING + many.closing <= 1.1 * 120, (seconds, plan.corrections)
    assert 0.9 * 120 <= seconds <= 1.1 * 120  # and where it needs hardly any of it


@pytest.mark.quick
def test_enough_steps_are_enough() -> None:
    """Nobody asked for the time: it is a limit, and what is left of it stays unused."""
    budget = Budget(120.0, STEP, EVALUATION, ROW, ROWS, most=100)
    assert trained(budget, 100, lambda now: 0.1)[1].total(10**9) == 100
    assert trained(budget, 100, lambda now: 100.0)[1].total(10**9) < 100


@pytest.mark.quick
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: type(one).__name__)
def test_a_correction_leaves_no_jump_and_nothing_before_it_changes(schedule: Any) -> None:
    plain, bent = Plan(200), Plan(200)
    bent.correct(Correction(80, 500))
    bent.correct(Correction(300, 320))
    assert [plain.factor(schedule, step) for step in range(200)] == [schedule.factor(step, 200) for step in range(200)]
    assert [bent.factor(schedule, s) for s in range(80)] == [plain.factor(schedule, s) for s in range(80)]
    rates = [bent.factor(schedule, step) for step in range(320)]
    steepest = max(abs(a - b) for a, b in pairwise(rates[40:80]))
    assert all(abs(a - b) <= max(12 * steepest, 0.12) for a, b in pairwise(rates[79:]))
    assert bent.total(79) == 200 and bent.total(80) == 500 and bent.total(300) == 320
    read = Plan.of(200, json.loads(json.dumps({"corrections": [vars(one) for one in bent.corrections]})))
    assert [read.factor(schedule, step) for step in range(320)] == rates


# ---------------------------------------------------------------- real processes

MINUTES = 0.25
ALLOWED = 2.0  # seconds for starting and for closing the folder, which a plan cannot foresee
WORDS = ["train", "book.txt", "--minutes", str(MINUTES), "--epochs", "100000", "--progress", "none", "--device", "cpu",
         "--set", "training.threads=1", "--set", "training.keep=1000", "--set", "model.stack.depth=1", "--set",
         "model.stack.width=32", "--set", "data.tokenizer.kind=char", "--max-length", "24"]  # fmt: skip


@contextmanager
def slowed_down(child: Child, times: float = 2.0) -> Iterator[None]:
    """The process stands still all but one part in `times`: neighbours of so much weight on its core."""
    ended = threading.Event()

    def shake() -> None:
        with suppress(ProcessLookupError):  # it has ended, or was killed
            while not ended.is_set():
                for number, share in ((signal.SIGSTOP, times - 1), (signal.SIGCONT, 1)):
                    os.kill(child.pid, number)
                    time.sleep(0.02 * share)

    thread = threading.Thread(target=shake)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def plan_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "plan.json").read_text())


def seconds_of(run: Path) -> float:
    facts = json.loads((run / "run.json").read_text())
    assert facts["status"] == "done", facts
    return facts["seconds"]


@pytest.fixture(scope="module")
def slowed(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Path:
    """A run that is slowed down as soon as it is planned, until its steps are done."""
    where = tmp_path_factory.mktemp("slowed")
    write_data(where)
    run = where / "run"
    child = nursery.start([*WORDS, "--out", "run"], where)
    child.until(lambda: (run / "metrics.jsonl").is_file())
    with slowed_down(child):
        child.until(lambda: bool(plan_of(run)["corrections"]))
        limit = time.monotonic() + 2 * 60 * MINUTES
        while child.ended() is None and time.monotonic() < limit:
            time.sleep(0.05)
            if (run / "evaluation.json").is_file():
                break
    assert child.wait() == 0, child.output
    return run


@pytest.mark.alone
def test_slowed_down_after_planning_it_ends_in_time(slowed: Path) -> None:
    plan, seconds = plan_of(slowed), seconds_of(slowed)
    assert plan["corrections"][-1]["steps"] < plan["steps"]
    assert 0.8 * 60 * MINUTES <= seconds <= 1.1 * 60 * MINUTES + ALLOWED, (seconds, plan)


@pytest.mark.alone
def test_eight_times_too_slow_while_it_plans_it_uses_its_time(tmp_path: Path, nursery: Nursery) -> None:
    write_data(tmp_path)
    run = tmp_path / "run"
    child = nursery.start([*WORDS, "--out", "run"], tmp_path)
    child.until(lambda: (run / "config.yaml").is_file())
    with slowed_down(child, times=8):
        child.until(lambda: (run / "metrics.jsonl").is_file())
    assert child.wait() == 0, child.output
    plan, seconds = plan_of(run), seconds_of(run)
    assert plan["corrections"][-1]["steps"] > 1.5 * plan["steps"]
    assert 0.8 * 60 * MINUTES <= seconds <= 1.1 * 60 * MINUTES + ALLOWED, (seconds, plan)


def again_from(run: Path, other: Path, at: int) -> None:
    """A copy of a run as a kill would have left it: its checkpoints up to one, everything that it had logged."""
    shutil.copytree(run, other)
    for path in sorted((other / "checkpoints").iterdir())[at + 1 :]:
        shutil.rmtree(path)
    for name in ("evaluation.json", "report.html"):
        (other / name).unlink()
    facts = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps(facts | {"status": "running", "finished": None}))


@pytest.mark.alone
def test_a_resume_repeats_every_correction_to_the_bit(slowed: Path, nursery: Nursery) -> None:
    """From the first checkpoint, on a machine that is quick again: the same steps, rates, weights and end."""
    again_from(slowed, slowed.parent / "again", 0)
    code, said = nursery.run(resume("again"), slowed.parent)
    assert code == 0, said
    assert plan_of(slowed.parent / "again")["corrections"] == plan_of(slowed)["corrections"]
    assert differing(slowed, slowed.parent / "again") == []
    # The control: without what was written down, the same steps have other rates.
    again_from(slowed, slowed.parent / "forgetful", 0)
    path = slowed.parent / "forgetful" / "plan.json"
    path.write_text(json.dumps(plan_of(slowed) | {"corrections": [], "budget": None}))
    code, said = nursery.run(resume("forgetful"), slowed.parent)
    assert code == 0, said
    assert "metrics.jsonl" in differing(slowed, slowed.parent / "forgetful")


@pytest.mark.alone
def test_killed_in_the_middle_it_repeats_what_it_had_logged(tmp_path: Path, nursery: Nursery) -> None:
    write_data(tmp_path)
    run = tmp_path / "run"
    child = nursery.start([*WORDS, "--out", "run"], tmp_path)
    child.until(lambda: (run / "metrics.jsonl").is_file())
    with slowed_down(child):
        child.until(lambda: bool(plan_of(run)["corrections"]))
        seen = len(logged_lines(run))
        child.until(lambda: (run / "metrics.jsonl").read_text().count("\n") > seen + 20)
        child.send(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    text = (run / "metrics.jsonl").read_text()
    logged = text[: text.rindex("\n")].split("\n")
    decided = plan_of(run)["corrections"]
    code, said = nursery.run(resume("run"), tmp_path)
    assert code == 0, said
    assert (run / "metrics.jsonl").read_text().split("\n")[: len(logged)] == logged
    assert plan_of(run)["corrections"][: len(decided)] == decided
    assert seconds_of(run) <= 1.1 * 60 * MINUTES + 2 * ALLOWED

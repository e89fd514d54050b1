"""StepPlanner: a run's number of steps as saved in its folder, corrected by the clock during training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from anyformer.amounts import gibibytes
from anyformer.data.order import Order
from anyformer.training.display.format import duration
from anyformer.training.distributed.peers import Peers
from anyformer.training.duration import PLAN_FILE, WINDOW, Budget, Correction, Plan, RunClock, Sizes, Throughput
from anyformer.training.run.folder import RunFolder
from anyformer.training.settings import Training
from anyformer.training.setup.budget import TrialTimes, mean_step_size


class StepPlanner:
    """The plan of a run, its time budget if any, and its measured throughput in this process."""

    def __init__(self, folder: RunFolder, peers: Peers, clock: RunClock, training: Training) -> None:
        self.folder, self.peers, self.clock, self.training = folder, peers, clock, training

        def look() -> tuple[dict[str, Any], int]:
            path = folder.path / PLAN_FILE
            facts = folder.read_json(PLAN_FILE) if path.is_file() else {}
            return facts, max((int(line["step"]) for line in folder.metrics()), default=0)

        # Steps that an earlier process has logged are repeated as they were, without new decisions.
        facts, self.decided = peers.broadcast(look)
        self.plan = Plan.of(training.steps or 1, facts)
        self.budget = Budget.of(facts)
        self.pace = Throughput(WINDOW * (self.budget.seconds if self.budget is not None else 60.0))

    def total(self, done: int) -> int:
        """Steps of the whole run under the plan after `done` steps."""
        return self.plan.total(done)

    def is_due(self, done: int) -> bool:
        """Whether the clock may change the plan after this step."""
        return self.budget is not None and done >= self.decided

    def correct(self, done: int, sizes: Sizes) -> Correction | None:
        """Change the number of steps if the clock requires it; the change is saved before any step depends on it."""
        found = self.peers.broadcast(lambda: self.find_correction(done, sizes))
        if found is None:
            return None
        correction = Correction(**found)
        facts = self.folder.read_json(PLAN_FILE)
        facts["corrections"] = [*(facts.get("corrections") or ()), found]
        self.folder.write_json(PLAN_FILE, facts)
        self.plan.correct(correction)
        self.folder.update(total=correction.steps)
        self.folder.event("plan", step=correction.step, steps=correction.steps)
        return correction

    def find_correction(self, done: int, sizes: Sizes) -> dict[str, Any] | None:
        """The correction that the clock requires, if any."""
        assert self.budget is not None
        every = self.training.eval_every or self.total(done)
        found = self.budget.corrected(self.plan, done, self.clock.elapsed(), self.pace, every, sizes)
        return None if found is None else asdict(found)


def first_plan(training: Training, found: TrialTimes, budget: Budget | None) -> dict[str, Any]:
    """The contents of plan.json before the first step."""
    return {
        "predicted": {"step_seconds": found.step, "seconds": found.step * (training.steps or 1),
                      "memory_bytes": found.memory, "limit_bytes": found.limit},
        "compile": training.compile, "steps": training.steps, "eval_every": training.eval_every,
        "budget": None if budget is None else budget.plain(), "corrections": [],
    }  # fmt: skip


def describe_length(training: Any, found: TrialTimes, order: Order) -> list[str]:
    """The expected time and memory, as log lines."""
    epochs = order.passes(0, training.steps)
    seconds = training.steps * found.step * mean_step_size(training, training.steps) + found.pauses
    limit = f" of {gibibytes(found.limit, 1)}" if found.limit else ""
    return [
        f"steps    {training.steps:,} ({epochs:,.1f} passes over the data), {found.step * 1e3:,.1f} ms each: about "
        f"{duration(seconds)}; {'compiled' if training.compile else 'not compiled'}",
        f"memory   {gibibytes(found.memory)}{limit} in the first steps",
    ]

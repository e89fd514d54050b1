"""What was decided about a frame: the task, what is predicted, what from, and what is left out and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from anyformer.data.frame import Frame
from anyformer.data.inputs import Input

if TYPE_CHECKING:
    from anyformer.data.settings import Data
    from anyformer.data.targets import Target

TARGET_NAMES = ("target", "label", "class", "y", "category", "output", "score")
SPAN = re.compile(r"from (\S+) to ([^\s;]+)")
Form = Literal["one", "list", "columns"]  # how labels are spelled: one a row, `a;b`, or columns of 0 and 1
Origin = Literal["table", "sentences", "pairs", "pictures", "sounds"]


class TargetRules(Protocol):
    """What preparing rows asks of a task; `tasks.base.RowTask` answers it."""

    name: ClassVar[str]

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        """Reasons a row has no target that can be used, each with a mask over the rows."""
        ...

    def strata(self, frame: Frame, decision: Decision) -> np.ndarray | None:
        """The class of each row, by which a random split keeps the shares; None where rows have none."""
        ...

    def check_training_rows(self, frame: Frame, decision: Decision, rows: np.ndarray, counts: str) -> None:
        """Refuse training rows that nothing can be learned from."""
        ...

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Target:
        """What is predicted, as the training rows in `frame` have it."""
        ...


@dataclass(frozen=True)
class Decision:
    """What was decided about a frame; printed by `lines` and stored by `plain`."""

    task: TargetRules
    target: tuple[str, ...]
    inputs: tuple[Input, ...]
    why: str = ""
    form: Form = "one"  # how labels are spelled
    dropped: tuple[tuple[str, str], ...] = ()  # column and reason
    notes: tuple[str, ...] = ()

    @property
    def multi(self) -> bool:
        """Whether a row may have several labels."""
        return self.form != "one"

    def plain(self) -> dict[str, Any]:
        """The decision as JSON holds it."""
        return {
            "task": self.task.name, "why": self.why, "target": list(self.target), "multi": self.multi,
            "columns": {column.name: {"kind": column.kind, "missing": column.facts.missing} for column in self.inputs},
            "dropped": dict(self.dropped), "notes": list(self.notes),
        }  # fmt: skip


def lines(decision: Decision, frame: Frame) -> list[str]:
    """The decision in plain English, one fact a line, aligned."""
    said = [f"task     {decision.task.name}" + (f": {decision.why}" if decision.why else "")]
    width = min(30, max([len(column.name) for column in decision.inputs] + [len(n) for n, _ in decision.dropped] + [4]))
    for column in decision.inputs:
        said.append(f"column   {column.name:<{width}}  {column.kind:<8}  {described(column, frame)}".rstrip())
    for name, reason in decision.dropped:
        said.append(f"left out {name:<{width}}  {reason}")
    return said + [f"note     {note}" for note in decision.notes]


def described(column: Input, frame: Frame) -> str:
    """What is known of a column, shortly: range or number of values, and how many are missing."""
    facts, parts = column.facts, [column.column.describe(column.facts)]
    if facts.missing:
        parts.append(f"{facts.missing:,} missing")
    return ", ".join(part for part in parts if part)

"""The decision about a frame: the task, the target, the inputs, and what is left out and why."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from anyformer.data.columns.base import Column
from anyformer.data.columns.kinds import kind_named
from anyformer.data.columns.look import ONE_VALUE, Facts
from anyformer.data.columns.pixels import side_of_images
from anyformer.data.frame import Frame
from anyformer.data.settings import Data
from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.data.settings import Data
    from anyformer.data.targets import Target


@dataclass(frozen=True)
class Input:
    """One input column."""

    name: str
    kind: str  # name of a kind of column
    facts: Facts

    @property
    def column(self) -> type[Column]:
        """The kind itself."""
        return kind_named(self.kind)


def name_of(frame: Frame) -> str:
    """The file name of a frame, for messages."""
    return frame.sources[0].name if frame.sources else "data"


def inputs_of(
    frame: Frame, facts: Mapping[str, Facts], settings: Data, target: tuple[str, ...]
) -> tuple[list[Input], list[tuple[str, str]]]:
    """The input columns, and those left out with the reason."""
    split, asked = settings.split, settings.kinds()
    rest: list[Input] = []
    dropped: list[tuple[str, str]] = []
    for name in frame.names:
        if name in target:
            continue
        if settings.inputs is not None:
            if name in settings.inputs:
                rest.append(Input(name, facts[name].readable, facts[name]))
            else:
                dropped.append((name, "not among the inputs asked for"))
        elif name == split.column:
            dropped.append((name, "says the split"))
        elif name == split.group and name not in asked:
            dropped.append((name, "says the group"))
        elif asked.get(name) == "skip":
            dropped.append((name, "left out as asked"))
        elif facts[name].dropped and name not in asked:
            dropped.append((name, str(facts[name].dropped)))
        else:
            rest.append(Input(name, facts[name].kind, facts[name]))
    if not rest:  # addresses and codes are better than no input: their parts may be informative
        codes = {name for name, why in dropped if facts[name].column.is_text and why == facts[name].dropped}
        rest = [Input(name, facts[name].kind, facts[name]) for name in frame.names if name in codes]
        dropped = [(name, why) for name, why in dropped if name not in codes]
    both = [name for name in settings.inputs or () if name in target]
    if both:
        raise UserError(f"{both[0]!r} is input and target at once", where="--inputs", fix="take it out of one")
    return rest, dropped


TARGET_NAMES = ("target", "label", "class", "y", "category", "output", "score")
SPAN = re.compile(r"from (\S+) to ([^\s;]+)")
Form = Literal["one", "list", "columns"]  # format of labels: one per row, `a;b`, or columns of 0 and 1
Origin = Literal["table", "sentences", "pairs", "pictures", "sounds"]


class TargetRules(Protocol):
    """The interface of a task for preparing rows, implemented by `tasks.row_task.RowTask`."""

    name: ClassVar[str]
    splits_by_time: ClassVar[bool]

    def target_problems(self, frame: Frame, decision: Decision) -> list[tuple[str, np.ndarray]]:
        """Reasons for which a row has no usable target, each with a mask over the rows."""
        ...

    def strata(self, frame: Frame, decision: Decision) -> np.ndarray | None:
        """The stratum of each row for a random split; None if rows have none."""
        ...

    def default_group(self, frame: Frame, decision: Decision) -> str | None:
        """The column whose equal values stay in one split by default."""
        ...

    def check_training_rows(self, frame: Frame, decision: Decision, rows: np.ndarray, counts: str) -> None:
        """Reject training rows that nothing can be learned from."""
        ...

    def fit_target(self, frame: Frame, decision: Decision, settings: Data, labels: Sequence[str] | None) -> Target:
        """Fit the target to the training rows in `frame`."""
        ...


@dataclass(frozen=True)
class Decision:
    """The decision about a frame; printed by `lines` and saved by `plain`."""

    task: TargetRules
    target: tuple[str, ...]
    inputs: tuple[Input, ...]
    why: str = ""
    form: Form = "one"  # format of labels
    dropped: tuple[tuple[str, str], ...] = ()  # column and reason
    notes: tuple[str, ...] = ()
    separator: str = ";"  # of labels in a cell, if form is "list"
    number_forms: tuple[str, ...] = ()  # number format of each target, if not the usual one

    @property
    def remarks(self) -> tuple[str, ...]:
        """All notes: those of the task, and on columns that look like something else."""
        constant = [name for name, why in self.dropped if why == ONE_VALUE]
        found = side_of_images({column.name: column.facts for column in self.inputs}, constant)
        if found is None:
            return self.notes
        side, channels = found
        shape = f"-1, {side}, {side}" + (f", {channels}" if channels > 1 else "")
        way = f"as images: ImageClassifier().fit(rows.reshape({shape}).astype('uint8'), labels)"
        count = f"{side * side * channels:,} columns look like pixels of {side} x {side} images"
        return (*self.notes, f"{count}, read here as a table; {way}")

    @property
    def multi(self) -> bool:
        """Whether a row may have several labels."""
        return self.form != "one"

    def plain(self) -> dict[str, Any]:
        """The decision as JSON."""
        return {
            "task": self.task.name, "why": self.why, "target": list(self.target), "multi": self.multi,
            "columns": {column.name: {"kind": column.kind, "missing": column.facts.missing} for column in self.inputs},
            "dropped": dict(self.dropped), "notes": list(self.remarks),
        }  # fmt: skip


def lines(decision: Decision, frame: Frame) -> list[str]:
    """The decision as aligned log lines, one fact per line."""
    said = [f"task     {decision.task.name}" + (f": {decision.why}" if decision.why else "")]
    width = min(30, max([len(column.name) for column in decision.inputs] + [len(n) for n, _ in decision.dropped] + [4]))
    for column in decision.inputs:
        said.append(f"column   {column.name:<{width}}  {column.kind:<8}  {describe_column(column, frame)}".rstrip())
    for name, reason in decision.dropped:
        said.append(f"left out {name:<{width}}  {reason}")
    return said + [f"note     {note}" for note in decision.remarks]


def describe_column(column: Input, frame: Frame) -> str:
    """A short description of a column: range or number of values, and missing cells."""
    facts, parts = column.facts, [column.column.describe(column.facts)]
    if facts.missing:
        parts.append(f"{facts.missing:,} missing")
    return ", ".join(part for part in parts if part)

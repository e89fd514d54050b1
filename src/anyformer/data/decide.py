"""From looking at a frame to a decision: which task, what is predicted, what from, and what is left out and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from anyformer.data.columns.look import Facts, look
from anyformer.data.frame import Frame
from anyformer.data.inputs import Input, inputs_of, name_of
from anyformer.data.settings import Data
from anyformer.data.tasks import Form, sentences_for, task_of
from anyformer.errors import UserError, did_you_mean

TARGET_NAMES = ("target", "label", "class", "y", "category", "output", "score")
SOURCE_NAMES = ("source", "src", "input", "question", "text", "document", "article")
TASKS = ("classify", "tag", "regress", "translate")
Origin = Literal["table", "sentences", "pairs", "pictures", "sounds"]


@dataclass(frozen=True)
class Decision:
    """What was decided about a frame; printed by `lines` and stored by `plain`."""

    task: str
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

    def of(self, kind: str) -> list[str]:
        """The names of the inputs of one kind."""
        return [column.name for column in self.inputs if column.kind == kind]

    def plain(self) -> dict[str, Any]:
        """The decision as JSON holds it."""
        return {
            "task": self.task, "why": self.why, "target": list(self.target), "multi": self.multi,
            "columns": {column.name: {"kind": column.kind, "missing": column.facts.missing} for column in self.inputs},
            "dropped": dict(self.dropped), "notes": list(self.notes),
        }  # fmt: skip


def decide(frame: Frame, settings: Data, *, task: str | None = None, origin: Origin = "table") -> Decision:
    """The task, target and inputs of a frame: what was asked for, and else what the columns look like."""
    if task is not None and task not in TASKS:
        raise UserError(f"{task!r} is no task for this data", where="--task", fix=did_you_mean(task, TASKS))
    if len(frame) == 0:
        raise UserError("no row can be used", where=name_of(frame), fix="give a file with rows")
    known(frame, settings)
    task = task or {"sentences": "tag", "pairs": "translate"}.get(origin)
    files = {"pictures": {"image": "image"}, "sounds": {"audio": "audio"}}.get(origin, {})
    facts = look(frame, files | settings.kinds())
    target, why = targets_of(frame, facts, settings, task, origin)
    if not target:
        return text_to_text(frame, facts, settings, origin)
    rest, dropped = inputs_of(frame, facts, settings, target)
    decided, form, reason = task_of(frame, facts, target, rest, task)
    if origin == "pairs":
        reason = "each line of one text belongs to a line of the other"
    why = "; ".join(part for part in (why, reason) if part)
    if decided == "tag":
        name = sentences_for(frame, target[0], rest)
        dropped += [(column.name, "only the words are read") for column in rest if column.name != name]
        refuse_named(settings, [column.name for column in rest if column.name != name], "a tagger reads words alone")
        rest = [replace(column, kind="sentence") for column in rest if column.name == name]
    elif decided == "translate":
        texts = [column for column in rest if column.column.is_text]
        named = [column for column in texts if column.name.lower() in SOURCE_NAMES]
        texts = named if len(texts) > 1 and len(named) == 1 else texts
        others = [column for column in rest if column not in texts]
        dropped += [(column.name, "only one text is read") for column in others]
        refuse_named(settings, [column.name for column in others], "a translator reads one text")
        rest = texts
    if not rest or (decided == "translate" and len(rest) > 1):
        found = "no column to learn from is left" if not rest else f"{len(rest)} columns of text to read"
        details = [f"{name}: {reason}" for name, reason in dropped]
        first = rest[0].name if rest else dropped[0][0] if dropped else "NAME"
        raise UserError(found, where=name_of(frame), fix=f"choose with --inputs {first}", details=details)
    return Decision(decided, target, tuple(rest), why, form, tuple(dropped))


def refuse_named(settings: Data, dropped: Iterable[str], why: str) -> None:
    """A column that would be left out although somebody named it to be read is an error, not a line among others."""
    for name in dropped:
        for option, named in (("--inputs", settings.inputs or ()), ("--types", settings.kinds())):
            if name in named and settings.kinds().get(name) != "skip":
                raise UserError(f"the column {name!r} cannot be read: {why}", where=option, fix="leave it out")


def known(frame: Frame, settings: Data) -> None:
    """Refuse names of columns that the frame does not have."""
    split = settings.split
    named: dict[str, Iterable[str]] = {
        "--target": settings.target or (), "--inputs": settings.inputs or (), "--types": settings.kinds(),
        "--split-column": [split.column] if split.column else (), "--group": [split.group] if split.group else (),
        "--time": [split.time] if split.time else (),
    }  # fmt: skip
    for option, names in named.items():
        for name in names:
            if name not in frame.names:
                raise UserError(
                    f"{name_of(frame)} has no column {name!r}", where=option, fix=did_you_mean(name, frame.names)
                )


def targets_of(
    frame: Frame, facts: Mapping[str, Facts], settings: Data, task: str | None, origin: Origin
) -> tuple[tuple[str, ...], str]:
    """The columns to predict and how they were found; none where two texts are a pair."""
    if settings.target:
        return settings.target, ""
    if origin == "sentences":
        return ("tags",), ""
    if origin in ("pictures", "sounds"):
        return ("label",), ""
    if origin == "pairs":
        return ("target",), ""
    found = [name for name in frame.names if name.lower() in TARGET_NAMES]
    texts = [name for name in frame.names if facts[name].column.is_text]
    if task == "translate" or (task is None and not found):
        if len(texts) == 2 and (task == "translate" or len(frame.names) == 2):
            return (), ""
    if len(found) == 1:
        return (found[0],), f"the column {found[0]!r} is named like a target"
    columns = ", ".join(frame.names[:12]) + (f" and {len(frame.names) - 12} more" if len(frame.names) > 12 else "")
    raise UserError(
        f"which column is to be predicted is not said (columns: {columns[:160]})", where=name_of(frame),
        fix=f"add --target {shlex.quote(likely(frame, facts))}",
    )  # fmt: skip


def likely(frame: Frame, facts: Mapping[str, Facts]) -> str:
    """The column to name as an example: the last that is whole and no text, else the last."""
    names = [name for name in frame.names if not facts[name].column.is_text and not facts[name].missing]
    return (names or frame.names)[-1]


def text_to_text(frame: Frame, facts: Mapping[str, Facts], settings: Data, origin: Origin) -> Decision:
    """A table of two texts: the first is read, the second written."""
    first, second = [name for name in frame.names if facts[name].column.is_text][:2]
    others = [name for name in frame.names if name not in (first, second)]
    refuse_named(settings, others, "a translator reads one text")
    dropped = tuple((name, "only one text is read") for name in frame.names if name not in (first, second))
    why = f"two columns of text and no target: {first} is read, {second} is written"
    return Decision("translate", (second,), (Input(first, "text", facts[first]),), why, dropped=dropped)


# ---------------------------------------------------------------- in words


def lines(decision: Decision, frame: Frame) -> list[str]:
    """The decision in plain English, one fact a line, aligned."""
    said = [f"task     {decision.task}" + (f": {decision.why}" if decision.why else "")]
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

"""From looking at a frame to a decision: which task, what is predicted, what from, and what is left out and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from anyformer.data.cells import coded, is_list
from anyformer.data.frame import Frame
from anyformer.data.kinds import Facts, look, numbers
from anyformer.data.settings import Data
from anyformer.data.targets import OFF, ON, flat
from anyformer.errors import UserError, did_you_mean

TARGET_NAMES = ("target", "label", "class", "y", "category", "output", "score")
SOURCE_NAMES = ("source", "src", "input", "question", "text", "document", "article")
TASKS = ("classify", "tag", "regress", "translate")
FEW, SOME, SOME_SHARE = 20, 100, 0.02  # different whole numbers that still are classes
MOST_CLASSES = 10_000
Origin = Literal["table", "sentences", "pairs", "pictures"]


@dataclass(frozen=True)
class Input:
    """One column to learn from."""

    name: str
    kind: str  # number, category, date, text, sentence, image
    facts: Facts


@dataclass(frozen=True)
class Decision:
    """What was decided about a frame; printed by `lines` and stored by `plain`."""

    task: str
    target: tuple[str, ...]
    inputs: tuple[Input, ...]
    why: str = ""
    form: Literal["one", "list", "columns"] = "one"  # how labels are spelled
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
    pictures = {"image": "image"} if origin == "pictures" else {}
    facts = look(frame, pictures | settings.kinds())
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
        rest = [replace(column, kind="sentence") for column in rest if column.name == name]
    elif decided == "translate":
        texts = [column for column in rest if column.kind == "text"]
        named = [column for column in texts if column.name.lower() in SOURCE_NAMES]
        texts = named if len(texts) > 1 and len(named) == 1 else texts
        dropped += [(column.name, "only one text is read") for column in rest if column not in texts]
        rest = texts
    if not rest or (decided == "translate" and len(rest) > 1):
        found = "no column to learn from is left" if not rest else f"{len(rest)} columns of text to read"
        details = [f"{name}: {reason}" for name, reason in dropped]
        first = rest[0].name if rest else dropped[0][0] if dropped else "NAME"
        raise UserError(found, where=name_of(frame), fix=f"choose with --inputs {first}", details=details)
    return Decision(decided, target, tuple(rest), why, form, tuple(dropped))


def name_of(frame: Frame) -> str:
    """The file a frame came from, for messages."""
    return frame.sources[0].name if frame.sources else "data"


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
    if origin == "pictures":
        return ("label",), ""
    if origin == "pairs":
        return ("target",), ""
    found = [name for name in frame.names if name.lower() in TARGET_NAMES]
    texts = [name for name in frame.names if facts[name].kind == "text"]
    if task == "translate" or (task is None and not found):
        if len(texts) == 2 and (task == "translate" or len(frame.names) == 2):
            return (), ""
    if len(found) == 1:
        return (found[0],), f"the column {found[0]!r} is named like a target"
    columns = ", ".join(frame.names[:12]) + (f" and {len(frame.names) - 12} more" if len(frame.names) > 12 else "")
    raise UserError(
        f"which column is to be predicted is not said (columns: {columns[:160]})", where=name_of(frame),
        fix=f"add --target {frame.names[-1]}",
    )  # fmt: skip


def text_to_text(frame: Frame, facts: Mapping[str, Facts], settings: Data, origin: Origin) -> Decision:
    """A table of two texts: the first is read, the second written."""
    first, second = [name for name in frame.names if facts[name].kind == "text"][:2]
    dropped = tuple((name, "only one text is read") for name in frame.names if name not in (first, second))
    why = f"two columns of text and no target: {first} is read, {second} is written"
    return Decision("translate", (second,), (Input(first, "text", facts[first]),), why, dropped=dropped)


def inputs_of(
    frame: Frame, facts: Mapping[str, Facts], settings: Data, target: tuple[str, ...]
) -> tuple[list[Input], list[tuple[str, str]]]:
    """The columns to learn from, and those left out with the reason."""
    split, asked = settings.split, settings.kinds()
    rest: list[Input] = []
    dropped: list[tuple[str, str]] = []
    for name in frame.names:
        if name in target:
            continue
        kind = facts[name].kind
        if settings.inputs is not None:
            if name in settings.inputs:
                rest.append(Input(name, "category" if kind in ("bool", "skip") else kind, facts[name]))
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
            rest.append(Input(name, "category" if kind == "bool" else kind, facts[name]))
    both = [name for name in settings.inputs or () if name in target]
    if both:
        raise UserError(f"{both[0]!r} is input and target at once", where="--inputs", fix="take it out of one")
    return rest, dropped


def task_of(
    frame: Frame, facts: Mapping[str, Facts], target: tuple[str, ...], rest: list[Input], task: str | None
) -> tuple[str, Literal["one", "list", "columns"], str]:
    """The task, how its labels are spelled, and why."""
    if len(target) > 1:
        return several(frame, target, task)
    (name,) = target
    column, seen = frame.column(name), facts[name]
    if is_list(column.type):
        return of_lists(frame, name, rest, task)
    if task == "tag":
        raise UserError(
            f"{name} holds no lists of tags", where="--task tag", fix="give a CoNLL file, or lists in JSONL"
        )
    if task == "translate":
        return "translate", "one", ""
    if task == "regress":
        if not np.isfinite(numbers(column)).any():
            raise UserError(f"{name} holds no numbers", where="--task regress", fix="use --task classify")
        return "regress", "one", ""
    whole, values = number_target(column, seen)
    if task is None and values and not whole:
        return "regress", "one", f"{name} is a number with {counted(seen)} different values"
    codes, words = coded(column)
    used = int((codes >= 0).sum())
    if used == 0:
        raise UserError(f"every value of {name} is missing", where=name_of(frame), fix="name another --target")
    listed = labels_in_lists(words) if not values else None
    if listed is not None:
        return "classify", "list", f"{name} holds lists of {listed} labels like {example(words)!r}"
    texts = [column for column in rest if column.kind == "text"]
    if task is None and len(words) > max(FEW, used // 2) and seen.kind == "text" and len(texts) == 1:
        return "translate", "one", f"{name} is text, nearly every row another"
    if len(words) > max(FEW, 0.9 * used) or len(words) > MOST_CLASSES:
        raise UserError(
            f"{name} has {len(words):,} different values in {used:,} rows, too many to be classes",
            where=name_of(frame), fix="name another --target, or say --task regress or translate",
        )  # fmt: skip
    return "classify", "one", f"{name} has {len(words):,} different values"


def of_lists(
    frame: Frame, name: str, rest: list[Input], task: str | None
) -> tuple[str, Literal["one", "list", "columns"], str]:
    """A target of lists: a tag for each word, labels that come together, or a text in pieces."""
    if task in (None, "tag") and sentences_for(frame, name, rest) is not None:
        return "tag", "one", "each word has a tag"
    if task == "tag":
        raise UserError(
            f"no column has as many words as {name} has tags", where=name_of(frame), fix="give lists of equal length"
        )
    codes, words = coded(flat(frame.column(name))[0])
    if task == "classify" or (task is None and len(words) <= max(SOME, len(codes) // 10)):
        return "classify", "list", f"{name} holds lists of {len(words):,} labels"
    if task in (None, "translate"):
        return "translate", "one", f"{name} is text in pieces"
    raise UserError(f"{name} holds lists", where=f"--task {task}", fix="use --task tag, classify or translate")


def sentences_for(frame: Frame, target: str, rest: list[Input]) -> str | None:
    """The column of words that tags belong to: lists as long as theirs, nearly always."""
    import pyarrow.compute as pc

    tags = pc.list_value_length(frame.column(target))
    for column in rest:
        if is_list(frame.column(column.name).type):
            same = pc.equal(tags, pc.list_value_length(frame.column(column.name)))
            if (pc.mean(same.cast("int8")).as_py() or 0) >= 0.9 and (pc.mean(tags).as_py() or 0) > 1:
                return column.name
    return None


def counted(facts: Facts) -> str:
    return facts.unique if isinstance(facts.unique, str) else f"{facts.unique:,}"


def number_target(column: Any, seen: Facts) -> tuple[bool, bool]:
    """Whether a target is few whole numbers, and whether it is numbers at all."""
    values = numbers(column)
    known_values = values[np.isfinite(values)]
    if len(known_values) == 0 or len(known_values) < 0.9 * (seen.rows - seen.missing):
        return False, False
    different = np.unique(known_values)
    few = len(different) <= FEW or (len(different) <= SOME and len(different) < SOME_SHARE * len(known_values))
    return bool(few and (different == np.round(different)).all()), True


def several(
    frame: Frame, target: tuple[str, ...], task: str | None
) -> tuple[str, Literal["one", "list", "columns"], str]:
    """Several targets: labels that are on or off, or several numbers."""
    words = {name: {word.lower() for word in coded(frame.column(name))[1]} for name in target}
    odd = {name: sorted(found - {*ON, *OFF}) for name, found in words.items()}
    if task in (None, "classify") and not any(odd.values()):
        return "classify", "columns", f"{len(target)} columns of 0 and 1 are labels that may come together"
    if task == "classify":
        name = next(name for name in target if odd[name])
        raise UserError(
            f"{name} holds {odd[name][0]!r}", where="--target", fix="several targets are columns of 0 and 1"
        )
    for name in target:
        if not np.isfinite(numbers(frame.column(name))).any():
            raise UserError(
                f"{name} holds no numbers", where="--target", fix="several targets are all numbers, or all 0 and 1"
            )
    return "regress", "one", f"{len(target)} columns of numbers"


def labels_in_lists(words: list[str]) -> int | None:
    """How many labels the words hold where they are lists like `a;b`; None where they are not."""
    lists = [word for word in words if ";" in word]
    parts = {part.strip() for word in words for part in word.split(";")} - {""}
    if not lists or any(len(part) > 60 for part in parts) or len(parts) > max(SOME, len(words)):
        return None
    return len(parts)


def example(words: list[str]) -> str:
    return next(word for word in words if ";" in word)[:40]


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
    facts, parts = column.facts, []
    if column.kind == "number":
        values = numbers(frame.column(column.name))
        values = values[np.isfinite(values)]
        parts.append(f"{values.min():.6g}..{values.max():.6g}" if len(values) else "")
    elif column.kind == "category":
        parts.append(f"{counted(facts)} values")
    else:
        parts.append(facts.reason)
    if facts.missing:
        parts.append(f"{facts.missing:,} missing")
    return ", ".join(part for part in parts if part)

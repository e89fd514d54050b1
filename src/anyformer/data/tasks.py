"""Which task a target asks for: numbers or classes, one label or several, a tag for each word, or text to write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from anyformer.data.columns.cells import coded, is_list
from anyformer.data.columns.convert import numbers
from anyformer.data.columns.look import Facts
from anyformer.data.frame import Frame
from anyformer.data.inputs import Input, name_of
from anyformer.data.targets import OFF, ON, flat
from anyformer.errors import UserError

FEW, SOME, SOME_SHARE = 20, 100, 0.02  # different whole numbers that still are classes
MOST_CLASSES = 10_000
Form = Literal["one", "list", "columns"]  # how labels are spelled: one a row, `a;b`, or columns of 0 and 1


def task_of(
    frame: Frame, facts: Mapping[str, Facts], target: tuple[str, ...], rest: list[Input], task: str | None
) -> tuple[str, Form, str]:
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
        return "regress", "one", f"{name} is a number with {seen.counted} different values"
    codes, words = coded(column)
    used = int((codes >= 0).sum())
    if used == 0:
        raise UserError(f"every value of {name} is missing", where=name_of(frame), fix="name another --target")
    listed = labels_in_lists(words) if not values else None
    if listed is not None:
        return "classify", "list", f"{name} holds lists of {listed} labels like {example(words)!r}"
    texts = [column for column in rest if column.column.is_text]
    if task is None and len(words) > max(FEW, used // 2) and seen.column.is_text and len(texts) == 1:
        return "translate", "one", f"{name} is text, nearly every row another"
    if len(words) > max(FEW, 0.9 * used) or len(words) > MOST_CLASSES:
        raise UserError(
            f"{name} has {len(words):,} different values in {used:,} rows, too many to be classes",
            where=name_of(frame), fix="name another --target, or say --task regress or translate",
        )  # fmt: skip
    return "classify", "one", f"{name} has {len(words):,} different values"


def of_lists(frame: Frame, name: str, rest: list[Input], task: str | None) -> tuple[str, Form, str]:
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


def number_target(column: Any, seen: Facts) -> tuple[bool, bool]:
    """Whether a target is few whole numbers, and whether it is numbers at all."""
    values = numbers(column)
    known_values = values[np.isfinite(values)]
    if len(known_values) == 0 or len(known_values) < 0.9 * (seen.rows - seen.missing):
        return False, False
    different = np.unique(known_values)
    few = len(different) <= FEW or (len(different) <= SOME and len(different) < SOME_SHARE * len(known_values))
    return bool(few and (different == np.round(different)).all()), True


def several(frame: Frame, target: tuple[str, ...], task: str | None) -> tuple[str, Form, str]:
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

"""What is worth knowing of columns before a model learns from them: how numbers are written, which tell the target."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import numpy as np

from anyformer.data.columns.cells import factorize
from anyformer.data.columns.written import numbers_written
from anyformer.data.decision import Input
from anyformer.data.frame import Frame
from anyformer.tasks.target_look import TargetLook

SHOWN = 4  # columns that are named
FEWEST = 10  # rows that can show that two columns say the same
SAME = 1 - 1e-12  # correlation of two columns of numbers one of which is the other in another unit


def notes_on(seen: TargetLook, task: str) -> Iterator[str]:
    """What somebody should know who reads the decision."""
    yield from note_forms(seen)
    if task in ("classify", "regress") and not seen.is_list:
        yield from note_leaks(seen)


def note_forms(seen: TargetLook) -> Iterator[str]:
    """Numbers that are not written as programs write them."""
    forms = {column.name: column.facts.form for column in seen.inputs if column.column.is_number}
    forms |= {name: seen.number_form(name) for name in seen.names}
    found = {name: form for name, form in forms.items() if form}
    if found:
        first = next(iter(found))
        said = ", ".join(f"{name} ({form})" for name, form in list(found.items())[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield f"read as numbers by the way they are written: {said}{more}; {setting(first, 'category')} keeps the words"


def note_leaks(seen: TargetLook) -> Iterator[str]:
    """Inputs that are the target by another name."""
    for name in seen.names:
        for column in seen.inputs:
            if column.column.in_table and (how := tells(seen, name, column)):
                yield (f"{column.name} {how} the target {name}: a model that reads it learns nothing else; "
                       f"leave it out with {setting(column.name, 'skip')}")  # fmt: skip


def tells(seen: TargetLook, name: str, column: Input) -> str:
    """How an input tells the target: in what words, or "" where it does not."""
    frame = seen.frame
    if column.column.is_number and seen.facts[name].column.is_number:
        values = numbers_written(frame.column(column.name), column.facts.form)
        wanted = numbers_written(frame.column(name), seen.number_form(name))
        both = np.isfinite(values) & np.isfinite(wanted)
        if both.sum() < FEWEST or np.ptp(wanted[both]) == 0 or np.ptp(values[both]) == 0:
            return ""
        if (values[both] == wanted[both]).all():
            return "is a copy of"
        if abs(float(np.corrcoef(values[both], wanted[both])[0, 1])) >= SAME:
            return "is, but for its unit,"
    return "stands one to one for" if one_to_one(frame, (column.name, name)) else ""


def one_to_one(frame: Frame, names: Sequence[str]) -> bool:
    """Whether each value of either column goes with one value of the other, and values come again often enough to
    show it."""
    one, two = (factorize(frame.column(name))[0] for name in names)
    both = (one >= 0) & (two >= 0)
    one, two = one[both], two[both]
    if len(one) < FEWEST:
        return False
    width = int(two.max()) + 1
    pairs = len(np.unique(one * width + two))
    kinds = len(np.unique(one))
    return bool(pairs == kinds == len(np.unique(two)) and 2 <= kinds <= len(one) // 5)


def setting(name: str, kind: str) -> str:
    """The option that says the kind of a column."""
    return f"--types {shlex.quote(f'{name}={kind}')}"

"""Notes on columns before training: number formats, and inputs that leak the target."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import numpy as np

from anyformer.data.columns.cells import factorize
from anyformer.data.columns.written import numbers_written
from anyformer.data.decision import Input
from anyformer.data.frame import Frame
from anyformer.tasks.target_look import TargetLook

SHOWN = 4  # columns named in a note
FEWEST = 10  # rows needed to show that two columns are equivalent
SHOWS = 100  # rows and distinct numbers needed to show that a number separates the classes
MOST_TERMS = 60  # number columns searched for a sum
GLANCE = 500  # rows checked before all rows are
SAME = 1 - 1e-12  # correlation above which two number columns differ only by their unit


def notes_on(seen: TargetLook, task: str) -> Iterator[str]:
    """Notes for the reader of the decision."""
    yield from note_forms(seen)
    if task in ("classify", "regress") and not seen.is_list:
        yield from note_leaks(seen, task)


def note_forms(seen: TargetLook) -> Iterator[str]:
    """Numbers in a format other than that of programs."""
    forms = {column.name: column.facts.form for column in seen.inputs if column.column.is_number}
    forms |= {name: seen.number_form(name) for name in seen.names}
    found = {name: form for name, form in forms.items() if form}
    if found:
        first = next(iter(found))
        said = ", ".join(f"{name} ({form})" for name, form in list(found.items())[:SHOWN])
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield f"read as numbers by the way they are written: {said}{more}; {setting(first, 'category')} keeps the words"


def note_leaks(seen: TargetLook, task: str) -> Iterator[str]:
    """Inputs that leak the target."""
    for name in seen.names:
        for column in seen.inputs:
            if column.column.in_table and (how := tells(seen, name, column)):
                yield (f"{column.name} {how} the target {name}: a model that reads it learns nothing else; "
                       f"leave it out with {setting(column.name, 'skip')}")  # fmt: skip
        known = seen.facts[name].column.is_number
        if terms := terms_of(seen, name) if known else []:
            yield (f"{said_sum(terms)} is the target {name}: a model that reads all of these learns nothing else; "
                   f"leave one out with {setting(terms[0][0], 'skip')}")  # fmt: skip
        if task == "classify":
            for column in seen.inputs:
                if column.column.is_number and separates(seen, name, column):
                    yield (f"{column.name} alone tells the classes of {name} apart: if it is known only where {name} "
                           f"is, leave it out with {setting(column.name, 'skip')}")  # fmt: skip


def tells(seen: TargetLook, name: str, column: Input) -> str:
    """How an input determines the target, in words; "" if it does not."""
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


def terms_of(seen: TargetLook, name: str) -> list[tuple[str, int]]:
    """Inputs that add up to the target, each with its sign; two or more, or none."""
    names = [column.name for column in seen.inputs if column.column.is_number][: MOST_TERMS + 1]
    if not 2 <= len(names) <= MOST_TERMS:
        return []
    forms = {column.name: column.facts.form for column in seen.inputs}
    wanted = numbers_written(seen.frame.column(name), seen.number_form(name))
    inputs = np.stack([numbers_written(seen.frame.column(each), forms[each]) for each in names], 1)
    there = np.isfinite(inputs).mean(0) > 0.5
    names, inputs = [each for each, kept in zip(names, there, strict=True) if kept], inputs[:, there]
    known = np.isfinite(wanted) & np.isfinite(inputs).all(1)
    wanted, inputs = wanted[known], inputs[known]
    if len(wanted) < max(FEWEST, 4 * len(names)) or np.ptp(wanted) == 0 or len(names) < 2:
        return []
    first = slice(0, max(GLANCE, 4 * len(names)))
    left = list(range(len(names)))
    if signs_of(inputs[first], wanted[first]) is None:
        return []
    for each in range(len(names)):
        fewer = [one for one in left if one != each]
        if len(fewer) > 1 and signs_of(inputs[first][:, fewer], wanted[first]) is not None:
            left = fewer
    weights = signs_of(inputs[:, left], wanted)
    if weights is None or np.abs(np.abs(weights) - 1).max() > 1e-6:
        return []
    return [(names[one], round(weight)) for one, weight in zip(left, weights, strict=True)]


def signs_of(inputs: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """The weights by which inputs add up to a number exactly; None if they do not."""
    spread = np.abs(inputs).max(0) + 1e-300
    weights = np.linalg.lstsq(inputs / spread, wanted, rcond=None)[0] / spread
    off = np.abs(inputs @ weights - wanted).max()
    return weights if off <= 1e-9 * np.abs(wanted).max() else None


def said_sum(terms: Sequence[tuple[str, int]]) -> str:
    """A sum in writing, subtracted terms last."""
    ordered = sorted(terms, key=lambda term: -term[1])
    return "".join((" + " if sign > 0 else " - ") + name for name, sign in ordered).removeprefix(" + ").strip()


def separates(seen: TargetLook, name: str, column: Input) -> bool:
    """Whether each class has its own range of numbers, with enough distinct numbers to show it."""
    values = numbers_written(seen.frame.column(column.name), column.facts.form)
    codes, words = factorize(seen.frame.column(name))
    known = np.isfinite(values) & (codes >= 0)
    values, codes = values[known], codes[known]
    if len(values) < SHOWS or known.mean() < 0.5 or not 2 <= len(words) <= len(values) // SHOWS + 1:
        return False
    return bounded(values[:GLANCE], codes[:GLANCE]) and len(np.unique(values)) >= SHOWS and bounded(values, codes)


def bounded(values: np.ndarray, codes: np.ndarray) -> bool:
    """Whether each class is one contiguous range of the sorted numbers, and no number has two classes."""
    order = np.lexsort((codes, values))
    values, codes = values[order], codes[order]
    changes = np.flatnonzero(np.diff(codes))
    return len(changes) == len(np.unique(codes)) - 1 and bool((values[changes] < values[changes + 1]).all())


def one_to_one(frame: Frame, names: Sequence[str]) -> bool:
    """Whether the values of two columns map one to one, and repeat often enough to show it."""
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
    """The option that sets the kind of a column."""
    return f"--types {shlex.quote(f'{name}={kind}')}"

"""Facts on a target column, by which tasks decide whether they fit it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anyformer.data.columns.cells import factorize, is_list
from anyformer.data.columns.look import Facts
from anyformer.data.columns.written import numbers_written
from anyformer.data.decision import TARGET_NAMES, Form, Input, Origin, name_of
from anyformer.data.frame import Frame
from anyformer.data.targets import OFF, ON, flat
from anyformer.errors import UserError

FEW, SOME, SOME_SHARE = 20, 100, 0.02  # distinct integers that may still be classes
SURELY_CLASSES = 10  # distinct integers that are never taken for a quantity: digits, grades, stars
ALIKE = 0.6  # correlation between frequencies of neighbouring values from which on the values are ordered
UNEVEN = 5.0  # unevenness of frequencies, in multiples of chance, needed to judge an order
# Words in a column's name that tell what its integers are.
QUANTITIES = frozenset(
    "age amount balance births calls cases clicks cnt cost count counts customers day days deaths demand distance "
    "downloads duration fare goals height hour hours humidity income km length likes mileage miles minute minutes "
    "month months number orders passengers points population pressure price profit qty quantity rating rentals "
    "retweets revenue rides rings salary sales score seconds shares size sold speed stock temperature tenure total "
    "trips upvotes users views visitors visits volume wage weight width year years".split()
)
CODES = frozenset(
    "activity author category class classes code cluster diagnosis digit emotion genre group id intent intents kind "
    "label labels language sentiment speaker species topic type".split()
)
MOST_CLASSES = 10_000
ROWS_PER_CODE, ROWS_PER_NUMBER = 2, 5  # of many classes, on average: if the name suggests classes, and otherwise
SEPARATORS = (";", "|", ",")  # between labels in one cell


@dataclass(frozen=True)
class Match:
    """A task that fits a target: the form of its labels, and why it fits."""

    form: Form = "one"
    why: str = ""
    separator: str = ";"


@dataclass(frozen=True)
class TargetLook:
    """One or more target columns beside the inputs; expensive facts are computed on first use and cached."""

    frame: Frame
    facts: Mapping[str, Facts]
    names: tuple[str, ...]
    inputs: Sequence[Input]
    origin: Origin = "table"

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def several(self) -> bool:
        return len(self.names) > 1

    @property
    def column(self) -> Any:
        """The only target column."""
        return self.frame.column(self.name)

    @property
    def is_list(self) -> bool:
        return not self.several and is_list(self.column.type)

    @property
    def texts(self) -> list[Input]:
        """The text inputs."""
        return [column for column in self.inputs if column.column.is_text]

    @property
    def images(self) -> list[Input]:
        """The image inputs."""
        return [column for column in self.inputs if column.column.is_image]

    @cached_property
    def values(self) -> tuple[np.ndarray, list[str]]:
        """The code of every row (-1 if missing) and the distinct values; of lists, those of their items."""
        codes, words = factorize(flat(self.column)[0] if self.is_list else self.column)
        if not self.is_list and not (codes >= 0).any():
            raise UserError(
                f"every value of {self.name} is missing", where=name_of(self.frame), fix="name another --target"
            )
        return codes, words

    @property
    def used(self) -> int:
        """Number of rows with a value."""
        return int((self.values[0] >= 0).sum())

    def number_form(self, name: str) -> str:
        """The number format of a target; "" if it is the usual one, or the target is not numeric."""
        facts = self.facts[name]
        return facts.form if facts.column.is_number else ""

    @cached_property
    def is_numeric(self) -> bool:
        """Whether nearly every value is a number."""
        seen = self.facts[self.name]
        known = self.known_numbers
        return len(known) > 0 and len(known) >= 0.9 * (seen.rows - seen.missing)

    @cached_property
    def known_numbers(self) -> np.ndarray:
        found = numbers_written(self.column, self.number_form(self.name))
        return found[np.isfinite(found)]

    @cached_property
    def few_whole_numbers(self) -> bool:
        """Whether the numbers are few integers, like class indices, and not a quantity."""
        return self.named_by_files or (self.may_be_codes and not self.quantity)

    @property
    def named_by_files(self) -> bool:
        """Whether folders or a label file give each image or audio file its class: those are classes by any name."""
        return self.origin in ("pictures", "sounds")

    @cached_property
    def name_words(self) -> set[str]:
        """The words in the column's name, in lower case."""
        return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", self.name)}

    @cached_property
    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct numbers, sorted, and the row count of each."""
        values, counts = np.unique(self.known_numbers, return_counts=True)
        return values, counts

    @cached_property
    def may_be_codes(self) -> bool:
        """Whether the numbers are integers, and few enough to be class indices."""
        different = self.counts[0]
        if not (different == np.round(different)).all():
            return False
        few = len(different) <= FEW or (
            len(different) <= SOME and len(different) < SOME_SHARE * len(self.known_numbers)
        )
        return few or bool(self.many_classes)

    @cached_property
    def many_classes(self) -> str:
        """Why many integers are class indices nevertheless; "" if they are not."""
        different, counts = self.counts
        if len(different) > MOST_CLASSES:
            return ""
        said = sorted(self.name_words & CODES)
        if said and len(different) * ROWS_PER_CODE <= counts.sum():
            return f"the name says {said[0]!r}"
        alone = bool(self.inputs) and not any(column.column.in_table for column in self.inputs)
        if not alone or self.name_words & QUANTITIES or len(different) * ROWS_PER_NUMBER > counts.sum():
            return ""
        if not count_from_start(different) or are_ordered(counts):
            return ""
        return "numbers without gaps, each in many rows, beside nothing that is measured"

    @cached_property
    def quantity(self) -> str:
        """Why integers that are few enough to be classes are a quantity; "" if they are not.

        Classes of texts, images and audio are often numbered; if no input is a number only the name decides.
        """
        values, counts = self.counts
        if len(values) <= SURELY_CLASSES or self.name_words & CODES:
            return ""
        named = sorted(self.name_words & QUANTITIES)
        if named:
            return f"the name says {named[0]!r}"
        beside = any(column.column.in_table for column in self.inputs)
        if beside and are_ordered(counts) and not self.numbered_by_frequency:
            return "neighbouring values are about as frequent, as those of a quantity are"
        return ""

    @cached_property
    def numbered_by_frequency(self) -> bool:
        """Whether the numbers count from 0 or 1 and a larger one is never more frequent: the most frequent class often
        comes first. A target with a generic name may deviate in a few."""
        values, counts = self.counts
        if not count_from_start(values):
            return False
        rises = int((np.diff(counts) > 0).sum())
        return rises <= (len(counts) // 5 if self.name.lower() in TARGET_NAMES else 0)

    @cached_property
    def class_reason(self) -> str:
        """Why numbers are taken for class indices, and how to change it; "" if that is obvious."""
        if not self.is_numeric or len(self.counts[0]) <= SURELY_CLASSES:
            return ""
        if self.named_by_files:
            why = "named by folders or a file of labels"
        else:
            said = sorted(self.name_words & CODES)
            why = self.many_classes or (f"the name says {said[0]!r}" if said else "few whole numbers")
        return f", {why}; if they measure something: --task regress"

    @cached_property
    def separator(self) -> str | None:
        """The separator of labels in a cell, `a;b`; None if cells have one label or numbers, or are typed as
        categories."""
        seen = self.facts[self.name]
        if self.is_numeric or self.is_list or (seen.asked and seen.column.in_table):
            return None
        return next((mark for mark in SEPARATORS if are_label_lists(self.values[1], mark)), None)

    @property
    def labels_in_lists(self) -> int:
        """Number of distinct labels if the values are lists."""
        parts = {part.strip() for word in self.values[1] for part in word.split(self.separator)}
        return len(parts - {""})

    @property
    def few_labels(self) -> bool:
        """Whether the items of a list column are few enough to be labels."""
        codes, words = self.values
        return len(words) <= max(SOME, len(codes) // 10)

    @cached_property
    def sentences(self) -> str | None:
        """The column of words that the tags belong to: nearly always lists of the same length."""
        import pyarrow.compute as pc

        tags = pc.list_value_length(self.column)
        for column in self.inputs:
            if is_list(self.frame.column(column.name).type):
                same = pc.equal(tags, pc.list_value_length(self.frame.column(column.name)))
                if (pc.mean(same.cast("int8")).as_py() or 0) >= 0.9 and (pc.mean(tags).as_py() or 0) > 1:
                    return column.name
        return None

    @cached_property
    def not_switches(self) -> tuple[str, str] | None:
        """The first of several columns with a value that is not binary, and that value."""
        for name in self.names:
            odd = sorted({word.lower() for word in factorize(self.frame.column(name))[1]} - {*ON, *OFF})
            if odd:
                return name, odd[0]
        return None


def are_ordered(counts: np.ndarray) -> bool:
    """Whether frequencies of sorted values rise and fall smoothly, which those of class indices have no reason to do.

    >>> are_ordered(np.array([1, 4, 15, 40, 60, 55, 30, 20, 9, 4, 2, 1])), are_ordered(np.array([30, 31, 29] * 4))
    (True, False)
    """
    uneven = ((counts - counts.mean()) ** 2).sum() / counts.mean() / (len(counts) - 1)  # about 1 by chance
    return bool(uneven > UNEVEN and np.corrcoef(counts[:-1], counts[1:])[0, 1] >= ALIKE)


def count_from_start(values: np.ndarray) -> bool:
    """Whether sorted numbers are 0, 1, 2, ... or 1, 2, 3, ... with hardly any gaps."""
    return bool(values[0] in (0, 1) and values[-1] - values[0] < 1.1 * len(values))


def are_label_lists(words: Sequence[str], mark: str) -> bool:
    """Whether values are labels with a separator. A comma or bar occurs in other text too: there nearly every label
    must occur in several values, and many at several positions or alone, unlike `Boston, MA`.

    >>> are_label_lists(["a", "a, b", "b, c", "c", "a, c"], ","), are_label_lists(["Bonn", "Salem, MA"], ",")
    (True, False)
    """
    lists = [[part.strip() for part in word.split(mark) if part.strip()] for word in words]
    parts = {part for row in lists for part in row}
    if not any(mark in word for word in words) or any(len(part) > 60 for part in parts):
        return False
    if len(parts) > max(SOME, len(words)):
        return False
    if mark == ";":
        return True
    values = dict.fromkeys(parts, 0)
    places: dict[str, set[int]] = {part: set() for part in parts}
    for row in lists:
        for place, part in enumerate(row):
            values[part] += 1
            places[part].add(-1 if len(row) == 1 else place)
    again = sum(count > 1 for count in values.values())
    free = sum(len(found) > 1 or found == {-1} for found in places.values())
    return again >= 0.8 * len(parts) and free >= 0.5 * len(parts)

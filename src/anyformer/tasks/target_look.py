"""A target column looked at: the facts by which tasks decide whether it asks for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from anyformer.data.columns.cells import factorize, is_list
from anyformer.data.columns.convert import numbers
from anyformer.data.columns.look import Facts
from anyformer.data.decision import Form, Input, name_of
from anyformer.data.frame import Frame
from anyformer.data.targets import OFF, ON, flat
from anyformer.errors import UserError

FEW, SOME, SOME_SHARE = 20, 100, 0.02  # different whole numbers that still may be classes
SURELY_CLASSES = 10  # different whole numbers that are never taken for a quantity: digits, grades, stars
ALIKE = 0.6  # correlation of the frequencies of neighbouring values from which on the values have an order
UNEVEN = 5.0  # how many times as uneven as chance frequencies are that tell anything about an order
# Words in a column's name that say what its whole numbers are.
QUANTITIES = frozenset(
    "age amount count day days height hour hours income length minute minutes month months number points price "
    "quantity rating rings score size temperature total weight width year years".split()
)
CODES = frozenset("category class code cluster digit group id kind label labels species type".split())


@dataclass(frozen=True)
class Match:
    """A task that fits a target: how its labels are spelled, and why it fits."""

    form: Form = "one"
    why: str = ""


@dataclass(frozen=True)
class TargetLook:
    """One or more target columns beside the inputs; what takes time to find is found once, when first asked for."""

    frame: Frame
    facts: Mapping[str, Facts]
    names: tuple[str, ...]
    inputs: Sequence[Input]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def several(self) -> bool:
        return len(self.names) > 1

    @property
    def column(self) -> Any:
        """The one target column."""
        return self.frame.column(self.name)

    @property
    def is_list(self) -> bool:
        return not self.several and is_list(self.column.type)

    @property
    def texts(self) -> list[Input]:
        """The inputs that are text."""
        return [column for column in self.inputs if column.column.is_text]

    @property
    def images(self) -> list[Input]:
        """The inputs that are images."""
        return [column for column in self.inputs if column.column.is_image]

    @cached_property
    def values(self) -> tuple[np.ndarray, list[str]]:
        """The code of every row (-1 where there is none) and the different values; of lists, those of their items."""
        codes, words = factorize(flat(self.column)[0] if self.is_list else self.column)
        if not self.is_list and not (codes >= 0).any():
            raise UserError(
                f"every value of {self.name} is missing", where=name_of(self.frame), fix="name another --target"
            )
        return codes, words

    @property
    def used(self) -> int:
        """Rows that have a value."""
        return int((self.values[0] >= 0).sum())

    @cached_property
    def is_numeric(self) -> bool:
        """Whether nearly every value is a number."""
        seen = self.facts[self.name]
        known = self.known_numbers
        return len(known) > 0 and len(known) >= 0.9 * (seen.rows - seen.missing)

    @cached_property
    def known_numbers(self) -> np.ndarray:
        found = numbers(self.column)
        return found[np.isfinite(found)]

    @cached_property
    def few_whole_numbers(self) -> bool:
        """Whether the numbers are few and whole, as the numbers of classes are, and measure nothing."""
        return self.may_be_codes and not self.quantity

    @cached_property
    def may_be_codes(self) -> bool:
        """Whether the numbers are whole, and few enough to be the numbers of classes."""
        known = self.known_numbers
        different = np.unique(known)
        few = len(different) <= FEW or (len(different) <= SOME and len(different) < SOME_SHARE * len(known))
        return bool(few and (different == np.round(different)).all())

    @cached_property
    def quantity(self) -> str:
        """Why whole numbers that are few enough to be classes measure or count something; "" where they do not.

        Classes of texts, images and sounds are often numbered; where no input is a number only the name decides.
        """
        values, counts = np.unique(self.known_numbers, return_counts=True)
        if len(values) <= SURELY_CLASSES:
            return ""
        words = set(re.findall(r"[a-z]+", self.name.lower()))
        if words & CODES:
            return ""
        named = sorted(words & QUANTITIES)
        if named:
            return f"the name says {named[0]!r}"
        if any(column.column.is_number for column in self.inputs) and are_ordered(counts):
            return "neighbouring values are about as frequent, as those of a quantity are"
        return ""

    @cached_property
    def labels_in_lists(self) -> int | None:
        """How many labels the values hold where they are spelled `a;b`; None where they are not, or are numbers."""
        if self.is_numeric:
            return None
        words = self.values[1]
        lists = [word for word in words if ";" in word]
        parts = {part.strip() for word in words for part in word.split(";")} - {""}
        if not lists or any(len(part) > 60 for part in parts) or len(parts) > max(SOME, len(words)):
            return None
        return len(parts)

    @property
    def few_labels(self) -> bool:
        """Whether the items of a column of lists are few enough to be labels."""
        codes, words = self.values
        return len(words) <= max(SOME, len(codes) // 10)

    @cached_property
    def sentences(self) -> str | None:
        """The column of words that tags belong to: lists as long as theirs, nearly always."""
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
        """The first of several columns with a value that is neither on nor off, and that value."""
        for name in self.names:
            odd = sorted({word.lower() for word in factorize(self.frame.column(name))[1]} - {*ON, *OFF})
            if odd:
                return name, odd[0]
        return None


def are_ordered(counts: np.ndarray) -> bool:
    """Whether frequencies of values in their order rise and fall slowly, for which numbers of classes have no reason.

    >>> are_ordered(np.array([1, 4, 15, 40, 60, 55, 30, 20, 9, 4, 2, 1])), are_ordered(np.array([30, 31, 29] * 4))
    (True, False)
    """
    uneven = ((counts - counts.mean()) ** 2).sum() / counts.mean() / (len(counts) - 1)  # about 1 by chance
    return bool(uneven > UNEVEN and np.corrcoef(counts[:-1], counts[1:])[0, 1] >= ALIKE)

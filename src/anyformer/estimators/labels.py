"""Classes of any type as strings, as used by training, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from anyformer.data.columns.convert import MISSING
from anyformer.tasks.target_look import SEPARATORS, are_label_lists

Cells = Literal["words", "file", "truths", "numbers"]  # the original type of a target column's cells


def spell_classes(classes: np.ndarray) -> list[str]:
    """A string for every class: its own text, or numbered names if training could misread any of them.

    >>> spell_classes(np.array([0, 1])), spell_classes(np.array(["a", "b"])), spell_classes(np.array(["", "a;b"]))
    (['0', '1'], ['a', 'b'], ['class 0', 'class 1'])
    """
    words = [word_of(value) for value in classes.tolist()]
    clear = all(word == word.strip() and word not in MISSING for word in words)
    clear = clear and not any(are_label_lists(words, mark) for mark in SEPARATORS)
    return words if clear and len(set(words)) == len(words) else [f"class {i}" for i in range(len(words))]


def word_of(value: Any) -> str:
    whole = isinstance(value, float) and value == round(value) and abs(value) < 2**53
    return str(int(value)) if whole else str(value)


def classes_of(labels: Sequence[str], cells: Cells) -> np.ndarray:
    """Labels in the original type of the cells; integers of a file are integers.

    >>> classes_of(["0", "1"], "file").tolist(), classes_of(["0", "1"], "words").tolist()
    ([0, 1], ['0', '1'])
    """
    if cells == "truths":
        return np.array([label.lower() == "true" for label in labels])
    if cells in ("file", "numbers"):
        try:
            if all(str(int(label)) == label for label in labels):
                return np.array([int(label) for label in labels])
            if cells == "numbers":
                return np.array([float(label) for label in labels])
        except ValueError:
            pass
    return np.array(labels, dtype=object)

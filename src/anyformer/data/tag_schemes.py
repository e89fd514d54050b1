"""Tags that mark spans (BIO, IOB2, IOB1, BIOES, BILOU), and their impossible transitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

MARKED = re.compile(r"[BIESLU](-.*)?", re.DOTALL)
OPEN, GOES_ON, CLOSES = "BI", "IEL", "EL"  # a span that may continue; a word in a span after its first; its last
ODD = 0.005  # fraction of the words in spans that may violate a scheme by mistake


def are_spans(tags: Iterable[str]) -> bool:
    """Whether these tag names mark spans: all are O or B-x, I-x, ..., and some begins with B or I.

    >>> are_spans(["O", "B-PER", "I-PER"]), are_spans(["NOUN", "VERB", "O"])
    (True, False)
    """
    names = set(tags) - {""}
    return all(name == "O" or MARKED.fullmatch(name) for name in names) and any(name[0] in "BI" for name in names)


def impossible_transitions(tags: Sequence[str]) -> np.ndarray:
    """(C+1,C+1) True if the column's tag may not follow the row's; the last row is the start, the last column the end.

    I-x continues B-x or I-x. In BIOES and BILOU a span also ends with E-x or L-x, which must be preceded by its span.

    >>> impossible_transitions(["B-a", "I-a", "O"])[:, 1].tolist()
    [False, False, True, True]
    """
    parts = [tag.partition("-")[::2] for tag in [*tags, "O"]]  # a sentence is bounded by words without a tag
    closed = any(mark in CLOSES for mark, _ in parts)
    found = np.zeros((len(parts), len(parts)), bool)
    for row, (before, kind) in enumerate(parts):
        for column, (after, other) in enumerate(parts):
            continues = before in OPEN and after in GOES_ON and kind == other
            found[row, column] = (after in GOES_ON or (closed and before in OPEN)) and not continues
    return found


def is_strict(tags: Sequence[str], codes: np.ndarray, owners: np.ndarray) -> bool:
    """Whether sentences follow the scheme, except for mistakes; not in IOB1, where I-x may begin a span.

    `codes` are the concatenated tags of all words, `owners` their sentences.
    """
    if not len(codes) or not are_spans(tags):
        return False
    edge = len(tags)  # the start and the end of a sentence
    new = np.flatnonzero(np.diff(owners)) + 1
    line = np.insert(codes, np.concatenate([[0], new, [len(codes)]]), edge)
    inside = np.array([tag != "O" for tag in tags])[codes].sum()
    return bool(impossible_transitions(tags)[line[:-1], line[1:]].sum() <= ODD * inside)

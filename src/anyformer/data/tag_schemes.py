"""Tags that mark spans (BIO, IOB2, IOB1, BIOES, BILOU), and which of them may not stand behind which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

MARKED = re.compile(r"[BIESLU](-.*)?", re.DOTALL)
OPEN, GOES_ON, CLOSES = "BI", "IEL", "EL"  # a span that may go on; a word within a span but its first; its last
ODD = 0.005  # share of the words in spans that may break a scheme by mistake


def are_spans(tags: Iterable[str]) -> bool:
    """Whether these names of tags mark spans: all are O or B-x, I-x, ..., and some begins with B or I.

    >>> are_spans(["O", "B-PER", "I-PER"]), are_spans(["NOUN", "VERB", "O"])
    (True, False)
    """
    names = set(tags) - {""}
    return all(name == "O" or MARKED.fullmatch(name) for name in names) and any(name[0] in "BI" for name in names)


def impossible_transitions(tags: Sequence[str]) -> np.ndarray:
    """(C+1,C+1) True where the column's tag may not follow the row's; the last row is the start, the column the end.

    I-x continues B-x or I-x. In BIOES and BILOU a span also ends with E-x or L-x, and nothing else stands before that.

    >>> impossible_transitions(["B-a", "I-a", "O"])[:, 1].tolist()
    [False, False, True, True]
    """
    parts = [tag.partition("-")[::2] for tag in [*tags, "O"]]  # a sentence stands between words without a tag
    closed = any(mark in CLOSES for mark, _ in parts)
    found = np.zeros((len(parts), len(parts)), bool)
    for row, (before, kind) in enumerate(parts):
        for column, (after, other) in enumerate(parts):
            continues = before in OPEN and after in GOES_ON and kind == other
            found[row, column] = (after in GOES_ON or (closed and before in OPEN)) and not continues
    return found


def is_strict(tags: Sequence[str], codes: np.ndarray, owners: np.ndarray) -> bool:
    """Whether sentences keep to the rules, but for mistakes: IOB1 does not, where I-x may be the first of a span.

    `codes` are the tags of all words one after the other, `owners` their sentences.
    """
    if not len(codes) or not are_spans(tags):
        return False
    edge = len(tags)  # the start and the end of a sentence
    new = np.flatnonzero(np.diff(owners)) + 1
    line = np.insert(codes, np.concatenate([[0], new, [len(codes)]]), edge)
    inside = np.array([tag != "O" for tag in tags])[codes].sum()
    return bool(impossible_transitions(tags)[line[:-1], line[1:]].sum() <= ODD * inside)

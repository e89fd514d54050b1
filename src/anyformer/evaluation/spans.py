"""Spans in sequences of tags (BIO, IOB2, IOB1, BIOES, BILOU), and their precision, recall and F1."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.data.tag_schemes import are_spans

__all__ = ["Span", "are_spans", "precision_recall_f1", "span_counts", "spans"]

Span = tuple[int, int, str]  # first word, one past the last, type

ALONE, LAST = "SU", "ESLU"  # prefixes of a single-word span; prefixes that end a span


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans of one sentence as in CoNLL: an I that continues no span begins one.

    >>> spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC')]
    """
    found: list[Span] = []
    start, kind, open_ = 0, "", False
    for at, tag in enumerate(tags):
        mark, _, name = tag.partition("-")
        inside = mark not in ("", "O")
        goes_on = open_ and inside and mark not in "B" + ALONE and name == kind
        if open_ and not goes_on:
            found.append((start, at, kind))
            open_ = False
        if inside and not open_:
            start, kind, open_ = at, name, True
        if open_ and mark in LAST:
            found.append((start, at + 1, kind))
            open_ = False
    if open_:
        found.append((start, len(tags), kind))
    return found


def span_counts(truth: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, tuple[int, int, int]]:
    """For each span type: the numbers of true, predicted and correctly predicted spans."""
    counts: dict[str, list[int]] = {}
    for want, got in zip(truth, predicted, strict=True):
        true, said = spans(want), spans(got)
        both = set(true) & set(said)
        for place, group in ((0, true), (1, said)):
            for span in group:
                counts.setdefault(span[2], [0, 0, 0])[place] += 1
        for span in true:
            counts[span[2]][2] += span in both
    return {kind: (one[0], one[1], one[2]) for kind, one in sorted(counts.items())}


def precision_recall_f1(true: int, said: int, both: int) -> tuple[float, float, float]:
    """Precision, recall and F1; 0 if the divisor is 0."""
    return both / said if said else 0.0, both / true if true else 0.0, 2 * both / (true + said) if true + said else 0.0

"""Text columns that add no information on the target to the other columns.

A text makes a Transformer read every row token by token, many times as long as a table takes. If its words add nothing,
that time is wasted and memorising them overfits.
"""

from __future__ import annotations

import re
import shlex
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from anyformer.data.columns.cells import factorize, texts
from anyformer.data.columns.written import numbers_written
from anyformer.data.decision import Input
from anyformer.tasks.target_look import TargetLook

ROWS, FEWEST = 2000, 500  # rows examined, drawn at random, and the fewest needed for a decision
COLUMNS = 3  # other columns needed before texts may be dropped
ADDS = 0.005  # fraction of the target's variance that words must explain to be kept
FOLDS = 4
BUCKETS, SHOWN_VALUES, MOST_CLASSES = 4096, 30, 30  # hashed words; values and classes with their own column
PENALTIES = (0.03, 0.3, 3.0, 30.0)  # as fractions of a row's mean square
WORD = re.compile(r"\w+")


def leave_out_idle(seen: TargetLook) -> tuple[list[Input], list[tuple[str, str]]]:
    """The inputs without idle texts, if there are enough other columns, and why each text is left out."""
    idle = [column for column in seen.texts if not column.facts.asked]
    beside = [column for column in seen.inputs if column.column.in_table and not column.column.is_text]
    if not idle or len(idle) < len(seen.texts) or len(beside) < COLUMNS or len(beside) + len(idle) < len(seen.inputs):
        return list(seen.inputs), []
    rows, wanted = draw(seen)
    if len(rows) < FEWEST:
        return list(seen.inputs), []
    left = left_over(features(seen, beside, rows), wanted)
    gain = 1.0 - (left_over(bags(seen, idle, rows), left) ** 2).sum() / max(float((wanted**2).sum()), 1e-12)
    gain -= 1.0 - (left**2).sum() / max(float((wanted**2).sum()), 1e-12)
    if gain >= ADDS:
        return list(seen.inputs), []
    why = "its words add nothing to the other columns, as a linear model of {:,} rows sees it; --types {} reads it"
    dropped = [(column.name, why.format(len(rows), shlex.quote(f"{column.name}=text"))) for column in idle]
    return [column for column in seen.inputs if column not in idle], dropped


def draw(seen: TargetLook) -> tuple[np.ndarray, np.ndarray]:
    """Sampled rows with a known target, and the target (N,K), centred: ranks of numbers, or frequent classes
    one-hot."""
    if seen.facts[seen.name].column.is_number and seen.is_numeric and len(seen.values[1]) > 2:
        values = numbers_written(seen.column, seen.number_form(seen.name))
        known = np.flatnonzero(np.isfinite(values))
        rows = np.sort(np.random.default_rng(0).permutation(known)[:ROWS])
        wanted = np.argsort(np.argsort(values[rows]))[:, None].astype(np.float64)  # ranks: outliers must not dominate
    else:
        codes, words = seen.values
        known = np.flatnonzero(codes >= 0)
        rows = np.sort(np.random.default_rng(0).permutation(known)[:ROWS])
        frequent = np.argsort(-np.bincount(codes[rows], minlength=len(words)))[:MOST_CLASSES]
        wanted = (codes[rows, None] == frequent).astype(np.float64)
    return rows, wanted - wanted.mean(0)


def features(seen: TargetLook, columns: Sequence[Input], rows: np.ndarray) -> np.ndarray:
    """Columns as inputs of a linear model: ranks of numbers, frequent values of categories one-hot."""
    frame, made = seen.frame.take(rows), []
    for column in columns:
        if column.column.is_number:
            values = numbers_written(frame.column(column.name), column.facts.form)
            known = np.isfinite(values)
            ranks = np.zeros(len(values))
            ranks[known] = np.argsort(np.argsort(values[known])) / max(1, known.sum()) - 0.5
            made += [ranks, ranks**2, ~known]
        else:
            codes, words = factorize(frame.column(column.name))
            frequent = np.argsort(-np.bincount(codes[codes >= 0], minlength=len(words)))[:SHOWN_VALUES]
            made += list((codes[:, None] == frequent).T)
    return np.stack(made, 1).astype(np.float64)


def bags(seen: TargetLook, columns: Sequence[Input], rows: np.ndarray) -> np.ndarray:
    """Hashed words and bigrams of each row, weighted by inverse document frequency and normalised."""
    frame, found = seen.frame.take(rows), np.zeros((len(rows), BUCKETS))
    for at, cells in enumerate(zip(*(texts(frame.column(column.name)) for column in columns), strict=True)):
        for name, cell in enumerate(cells):
            words = WORD.findall(cell.lower())
            for word in (*words, *pairwise(words)):
                found[at, zlib.crc32(f"{name} {word}".encode()) % BUCKETS] = 1.0
    found *= np.log(len(rows) / (1 + found.sum(0))) + 1
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)


def left_over(inputs: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The cross-validated residual (N,K) of a ridge regression on the target, with the best penalty."""
    inputs = inputs - inputs.mean(0)
    products = inputs @ inputs.T
    fold = np.random.default_rng(1).permutation(len(wanted)) % FOLDS
    best = wanted
    for penalty in PENALTIES:
        left = np.empty_like(wanted)
        for part in range(FOLDS):
            here, there = fold == part, fold != part
            square = products[np.ix_(there, there)]
            shrunk = square + penalty * np.trace(square) / len(square) * np.eye(len(square))
            left[here] = wanted[here] - products[np.ix_(here, there)] @ np.linalg.solve(shrunk, wanted[there])
        best = left if (left**2).sum() < (best**2).sum() else best
    return best

"""A frame into arrays on disk, by what was fitted on the training rows: the same for training and for new rows."""

from __future__ import annotations

import numpy as np

from anyformer.data.arrays import Arrays
from anyformer.data.cells import worded
from anyformer.data.columns import MISSING, Category, Date, Number, Sentence, Text
from anyformer.data.frame import Frame
from anyformer.data.preprocess import Preprocess
from anyformer.data.targets import Encoded
from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import UserError

LONGEST = 512  # tokens of a row, where nothing is said and training rows are that long


def encode(
    frame: Frame, preprocess: Preprocess, tokenizer: Tokenizer | None, arrays: Arrays, *, train: np.ndarray | None
) -> tuple[Preprocess, Counts]:
    """Write the inputs of every row but pictures; `train` are the rows that may still decide the length of text.

    Gives the preprocessing with the length filled in, and what was cut, unknown and missing.
    """
    counts = Counts(len(frame))
    if "table" in preprocess.parts:
        encode_table(frame, preprocess, arrays, counts, train)
    if preprocess.task == "translate":
        preprocess = encode_pairs(frame, preprocess, needed(tokenizer), arrays, counts, train)
    elif preprocess.of(Sentence):
        preprocess = encode_sentences(frame, preprocess, needed(tokenizer), arrays, counts, train)
    elif preprocess.of(Text):
        preprocess = encode_texts(frame, preprocess, needed(tokenizer), arrays, counts, train)
    return preprocess, counts


def needed(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise UserError("there is text but no tokenizer", where="tokenizer", fix="copy the whole folder")
    return tokenizer


def encode_target(frame: Frame, preprocess: Preprocess) -> Encoded | None:
    """The targets of the rows, None where the frame has not all of their columns."""
    target = preprocess.target
    if target is None or not set(target.names) <= set(frame.names):
        return None
    return target.encode(frame)


# ---------------------------------------------------------------- tables


def encode_table(
    frame: Frame, preprocess: Preprocess, arrays: Arrays, counts: Counts, train: np.ndarray | None
) -> None:
    """Numbers (N, F) and categories (N, K)."""
    if preprocess.numbers:
        room = arrays.room("numbers", (len(frame), preprocess.numbers), np.float32)
        at = 0
        for column in preprocess.of(Number, Date):
            made = column.encode(frame.column(column.name)).reshape(len(frame), -1)
            room[:, at : at + made.shape[1]] = made
            at += made.shape[1]
            note_missing(frame, column.name, int(np.isnan(made[:, 0]).sum()) if made.shape[1] else 0, counts)
        del room
    categories = preprocess.of(Category)
    if categories:
        table = arrays.room("categories", (len(frame), len(categories)), np.int32)
        for at, column in enumerate(categories):
            made = column.encode(frame.column(column.name))
            table[:, at] = made
            note_missing(frame, column.name, int((made == MISSING).sum()), counts)
            note_unknown(frame, column, made, counts, preprocess.unknown == "error", train)
        del table


def note_missing(frame: Frame, name: str, lost: int, counts: Counts) -> None:
    """Count cells without a value; those that hold something else than a number or date are named."""
    if not lost:
        return
    counts.missing[name] = lost


def note_unknown(
    frame: Frame, column: Category, ids: np.ndarray, counts: Counts, refused: bool, train: np.ndarray | None
) -> None:
    """Count values that training did not have, naming the first; refuse them where that was asked for."""
    new = ids == column.count - 1
    if not new.any():
        return
    strange = new.copy()
    if train is not None:
        strange[train] = False  # too rare in training to count, as was asked
    row = int(np.flatnonzero(strange if strange.any() else new)[0])
    value = str(worded(frame.column(column.name).slice(row, 1))[0].as_py())
    shown = f"{column.name}={value[:40]}"
    if refused and strange.any():
        raise UserError(
            f"{shown} is not among the {column.count - 1} values of the training rows", where=frame.place(row),
            fix="repair the cell, or allow it with data.columns.unknown=bucket",
        )  # fmt: skip
    counts.unknown[column.name] = int(new.sum())
    counts.shown[column.name] = f"{shown}, {frame.place(row)}"

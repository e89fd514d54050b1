"""A frame into arrays on disk, by what was fitted on the training rows: the same for training and for new rows."""

from __future__ import annotations

import numpy as np

from anyformer.data.columns.fitted import MISSING, Category, Date, Number, Sentence, Text
from anyformer.data.columns.parsed import Parsed
from anyformer.data.counts import Counts, shown
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.datasets.encode_texts import encode_pairs, encode_sentences, encode_texts
from anyformer.data.frame import Frame
from anyformer.data.preprocess import Preprocess
from anyformer.data.targets import Encoded
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import UserError


def encode(
    frame: Frame,
    preprocess: Preprocess,
    tokenizer: Tokenizer | None,
    arrays: Arrays,
    *,
    train: np.ndarray | None,
    parsed: Parsed | None = None,
) -> tuple[Preprocess, Counts]:
    """Write the inputs of every row but pictures; `train` are the rows that may still decide the length of text.

    Gives the preprocessing with the length filled in, and what was cut, unknown and missing.
    """
    counts = Counts(len(frame))
    if "table" in preprocess.parts:
        encode_table(frame, preprocess, arrays, counts, train, parsed or Parsed(frame))
    if preprocess.writes_text:
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
    frame: Frame, preprocess: Preprocess, arrays: Arrays, counts: Counts, train: np.ndarray | None, parsed: Parsed
) -> None:
    """Numbers (N, F) and categories (N, K)."""
    if preprocess.numbers:
        room = arrays.room("numbers", (len(frame), preprocess.numbers), np.float32)
        at = 0
        for column in preprocess.of(Number, Date):
            cells = (
                parsed.moments(column.name, column.form) if isinstance(column, Date) else parsed.numbers(column.name)
            )
            made = column.encode(cells).reshape(len(frame), -1)
            room[:, at : at + made.shape[1]] = made
            at += made.shape[1]
            counts.lost(frame, column.name, np.isnan(made[:, 0]))
        del room
    categories = preprocess.of(Category)
    if categories:
        table = arrays.room("categories", (len(frame), len(categories)), np.int32)
        for at, column in enumerate(categories):
            made = column.encode(frame.column(column.name))
            table[:, at] = made
            counts.lost(frame, column.name, made == MISSING)
            note_unknown(frame, column, made, counts, preprocess.unknown == "error", train)
        del table


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
    if refused and strange.any():
        value, _, place = shown(frame, column.name, row).rpartition(", ")
        raise UserError(
            f"{value} is not among the {column.count - 1} values of the training rows", where=place,
            fix="repair the cell, or allow it with data.columns.unknown=bucket",
        )  # fmt: skip
    counts.unknown[column.name] = int(new.sum())
    counts.unknown_first[column.name] = shown(frame, column.name, row)

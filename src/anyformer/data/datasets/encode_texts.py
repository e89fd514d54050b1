"""Text columns tokenized to disk: single texts, pairs, tagged sentences, and source-target pairs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.columns.cells import as_words, texts
from anyformer.data.counts import ColumnCounts
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.frame import Frame
from anyformer.data.targets import Answer, TaskAnswer
from anyformer.data.tokenizers.parallel_encode import (
    Flat,
    Framer,
    WordEncoder,
    around,
    encode_columns,
    longest,
    pieces,
    token_type,
)
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from anyformer.data.preprocess import Preprocess

LONGEST = 512  # default maximum tokens per row, if training rows are that long


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, or an error if there is none."""
    if tokenizer is None:
        raise UserError("there is text but no tokenizer", where="tokenizer", fix="copy the whole folder")
    return tokenizer


def raw_tokens(
    columns: Sequence[Any], tokenizer: Tokenizer, arrays: Arrays, names: Sequence[str]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The ids of each column's texts without special tokens, temporarily on disk: tokens and row starts."""
    flats = [Flat(arrays, name, token_type(tokenizer)) for name in names]
    for piece in pieces(len(columns[0])):
        size = piece.stop - piece.start
        for flat, column in zip(flats, columns, strict=True):
            flat.add([row for (row,) in encode_columns(tokenizer, [texts(column.slice(piece.start, size))])])
    for flat in flats:
        flat.close()
    return [(arrays[name], arrays[f"{name}_starts"]) for name in names]


def drop_arrays(arrays: Arrays, names: Sequence[str]) -> None:
    """Remove intermediate arrays."""
    for name in names:
        for part in (name, f"{name}_starts"):
            arrays.drop(part)


def rows_of(tokens: np.ndarray, starts: np.ndarray, piece: slice) -> list[list[int]]:
    """A slice of rows as lists."""
    edges = starts[piece.start : piece.stop + 1].tolist()
    block = tokens[edges[0] : edges[-1]].tolist()
    return [block[a - edges[0] : b - edges[0]] for a, b in pairwise(edges)]


def encode_texts(
    frame: Frame, preprocess: Preprocess, tokenizer: Tokenizer, arrays: Arrays, counts: ColumnCounts,
    train: np.ndarray | None,
) -> Preprocess:  # fmt: skip
    """Encode the texts of a row as one sequence: a pair, or concatenated."""
    columns = preprocess.texts
    names = [f"raw{i}" for i in range(len(columns))]
    raw = raw_tokens([frame.column(column.name) for column in columns], tokenizer, arrays, names)
    joined = not preprocess.pair
    if preprocess.length is None:
        whole = sum((np.diff(starts) for _, starts in raw), np.zeros(len(frame), np.int64))
        special = 1000 - Framer(tokenizer, 1000, len(columns), joined=joined).room
        chosen = whole if train is None else whole[train]
        preprocess = preprocess.replace(length=longest([int(chosen.max(initial=0)) + special], most=LONGEST))
    framer = Framer(tokenizer, preprocess.length or LONGEST, len(columns), joined=joined)
    flat = Flat(arrays, "tokens", token_type(tokenizer))
    second, cut = np.zeros(len(frame), np.int32), np.zeros(len(frame), bool)
    for piece in pieces(len(frame)):
        ready = []
        rows = zip(*(rows_of(*part, piece) for part in raw), strict=True)
        for number, parts in enumerate(rows, piece.start):
            row, second[number], cut[number] = framer(parts)
            ready.append(row)
        flat.add(ready)
    flat.close()
    drop_arrays(arrays, names)
    arrays.put("cut", cut)
    if preprocess.pair and preprocess.segments:
        arrays.put("second", second)
    counts.cut = int(cut.sum())
    for column in columns:
        counts.lost(frame, column.name, as_words(frame.column(column.name)).is_null().to_numpy())
    return preprocess


def encode_pairs(
    frame: Frame, preprocess: Preprocess, tokenizer: Tokenizer, arrays: Arrays, counts: ColumnCounts,
    train: np.ndarray | None,
) -> Preprocess:  # fmt: skip
    """Encode source and target text, either if present: rows may be images, and new ones have no target.

    Targets end with the end token and omit the decoder's start token.
    """
    assert isinstance(preprocess.target, Answer)
    (target,) = preprocess.target.names
    raw = {}
    if preprocess.texts:
        (raw["tokens"],) = raw_tokens([sources_of(frame, preprocess)], tokenizer, arrays, ["raw_tokens"])
    if target in frame.names:
        (raw["answers"],) = raw_tokens([frame.column(target)], tokenizer.target, arrays, ["raw_answers"])
    marks = around(tokenizer.target)
    front = [] if marks.front == [preprocess.start] else marks.front
    back = marks.back or ([] if tokenizer.eos is None else [tokenizer.eos])
    if preprocess.length is None:
        special = max(1000 - Framer(tokenizer, 1000, 1).room, len(front) + len(back))
        sizes = [np.diff(starts) if train is None else np.diff(starts)[train] for _, starts in raw.values()]
        most = max((int(size.max(initial=0)) for size in sizes), default=0)
        preprocess = preprocess.replace(length=longest([most + special], most=LONGEST))
    length = preprocess.length or LONGEST
    framer = Framer(tokenizer, length, 1)
    room = max(1, length - len(front) - len(back))
    cut = np.zeros(len(frame), bool)

    def frame_source(row: list[int]) -> tuple[list[int], bool]:
        made, _, too_long = framer([row])
        return made, too_long

    def frame_answer(row: list[int]) -> tuple[list[int], bool]:
        return [*front, *row[:room], *back], len(row) > room

    for name, framed in (("tokens", frame_source), ("answers", frame_answer)):
        if name not in raw:
            continue
        flat = Flat(arrays, name, token_type(tokenizer))
        for piece in pieces(len(frame)):
            ready = []
            for number, row in enumerate(rows_of(*raw[name], piece), piece.start):
                made, too_long = framed(row)
                cut[number] |= too_long
                ready.append(made)
            flat.add(ready)
        flat.close()
    drop_arrays(arrays, [f"raw_{name}" for name in raw])
    arrays.put("cut", cut)
    counts.cut = int(cut.sum())
    return preprocess


def sources_of(frame: Frame, preprocess: Preprocess) -> pa.ChunkedArray:
    """The source texts; if a column names the task of each row, it is prepended: "Summarize: ..."."""
    import pyarrow as pa

    source = frame.column(preprocess.texts[-1].name)
    if not isinstance(preprocess.target, TaskAnswer):
        return source
    tasks = texts(frame.column(preprocess.target.task))
    return pa.chunked_array([
        pa.array([with_task(task, text) for task, text in zip(tasks, texts(source), strict=True)], pa.string())
    ])  # fmt: skip


def with_task(task: str, text: str) -> str:
    """Prepend the task to an input, as in a prompt.

    >>> with_task("Summarize", "A storm came."), with_task("Summarize: ", "A storm came.")
    ('Summarize: A storm came.', 'Summarize: A storm came.')
    """
    name = task.strip().removesuffix(":").rstrip()
    return f"{name}: {text}" if name else text


def encode_sentences(
    frame: Frame, preprocess: Preprocess, tokenizer: Tokenizer, arrays: Arrays, counts: ColumnCounts,
    train: np.ndarray | None,
) -> Preprocess:  # fmt: skip
    """Encode words as subword tokens, with the first token of each word, and its tag."""
    (column,) = preprocess.texts
    encoder = WordEncoder(tokenizer)
    if preprocess.length is None:
        lengths = np.zeros(len(frame), np.int64)
        for piece in pieces(len(frame)):
            for number, words in enumerate(encoder(sentences(frame, column.name, piece)), piece.start):
                lengths[number] = sum(max(1, len(ids)) for ids in words)
        most = int((lengths if train is None else lengths[train]).max(initial=0))
        special = 1000 - Framer(tokenizer, 1000, 1).room
        preprocess = preprocess.replace(length=longest([most + special], most=LONGEST))
    framer = Framer(tokenizer, preprocess.length or LONGEST, 1)
    tokens, begins = Flat(arrays, "tokens", token_type(tokenizer)), Flat(arrays, "begins", np.int32)
    cut = np.zeros(len(frame), bool)
    front = len(framer.marks.front)
    for piece in pieces(len(frame)):
        ready, places = [], []
        for number, words in enumerate(encoder(sentences(frame, column.name, piece)), piece.start):
            ids: list[int] = []
            at: list[int] = []
            for word in words:
                at.append(front + len(ids))
                ids += word or [framer.fill]
            row, _, cut[number] = framer([ids])
            ready.append(row)
            places.append([place for place in at if place < front + framer.room])
        tokens.add(ready)
        begins.add(places)
    tokens.close()
    begins.close()
    arrays.put("cut", cut)
    counts.cut = int(cut.sum())
    return preprocess


def sentences(frame: Frame, name: str, piece: slice) -> list[list[str]]:
    """A slice of rows as lists of words."""
    cells = frame.column(name).slice(piece.start, piece.stop - piece.start).to_pylist()
    return [["" if word is None else str(word) for word in words or ()] for words in cells]

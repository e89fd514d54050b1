"""Questions about contexts as windows of tokens: the question, then as much of the context as fits.

A long context is split into overlapping windows, each after the whole question (1810.04805). The arrays have one entry
per window; `windows_starts` maps rows to their windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anyformer.data.answer_spans import ABSENT_ANSWER, AnswerSpan, Place, find_answers
from anyformer.data.columns.cells import as_words, some, texts
from anyformer.data.counts import ColumnCounts
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.datasets.encode_texts import LONGEST, drop_arrays, raw_tokens, rows_of
from anyformer.data.frame import Frame
from anyformer.data.tokenizers.parallel_encode import Flat, Framer, longest, pieces, token_type
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.objectives.objective import IGNORED

if TYPE_CHECKING:
    from anyformer.data.preprocess import Preprocess

MOST_OF_QUESTION = 64  # tokens; longer questions are cut, so that a window has room for the context
NOWHERE = 0  # target position in a window without the answer: its first token, BERT's [CLS]


class TokenSpan(NamedTuple):
    """The first and last token of a span in the context, both included."""

    first: int
    last: int


ABSENT_TOKENS = TokenSpan(-1, -1)  # the context has no answer


def encode_questions(
    frame: Frame, preprocess: Preprocess, tokenizer: Tokenizer, arrays: Arrays, counts: ColumnCounts,
    train: np.ndarray | None,
) -> Preprocess:  # fmt: skip
    """Encode every row as windows, with the position of its answer in each of them if known."""
    target = preprocess.target
    assert isinstance(target, AnswerSpan)
    questions = raw_tokens([frame.column(target.question)], tokenizer, arrays, ["raw0"])[0]
    contexts = context_tokens(frame, target.context, tokenizer, arrays, "raw1")
    if preprocess.length is None:
        whole = np.diff(questions[1]) + np.diff(contexts[1])
        special = 1000 - Framer(tokenizer, 1000, 2).room
        most = int((whole if train is None else whole[train]).max(initial=0))
        preprocess = preprocess.replace(length=longest([most + special], most=LONGEST))
    places: list[Place | None] = [None] * len(frame)
    if target.names[0] in frame.names:
        places = find_answers(frame, target.names, target.context, may_be_absent=target.may_be_absent)
    writer = WindowWriter(tokenizer, preprocess.length or LONGEST, target.stride, arrays)
    cut = np.zeros(len(frame), bool)
    for piece in pieces(len(frame)):
        rows = zip(rows_of(*questions, piece), rows_of(*contexts, piece), strict=True)
        for row, (question, context) in enumerate(rows, piece.start):
            cut[row] = writer.add(question, context, answer_tokens(arrays, row, places[row]))
    writer.close(segments=preprocess.segments)
    drop_arrays(arrays, ["raw0", "raw1"])
    arrays.put("cut", cut)
    counts.cut = int(cut.sum())
    count_remarks(counts, len(frame), len(arrays["context_at"]), places)
    for name in (target.question, target.context):
        counts.lost(frame, name, as_words(frame.column(name)).is_null().to_numpy())
    return preprocess


def count_remarks(counts: ColumnCounts, rows: int, windows: int, places: Sequence[Place | None]) -> None:
    """Notes on windows and answers."""
    if windows > rows:
        counts.remarks.append(f"{some(rows, 'question')} make {windows:,} windows: long contexts are read in several")
    moved = sum(place is not None and place.moved for place in places)
    if moved:
        counts.remarks.append(
            f"{some(moved, 'answer')} not where the file says: the same words nearest to it are taken"
        )


def context_tokens(
    frame: Frame, name: str, tokenizer: Tokenizer, arrays: Arrays, kept: str
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of the contexts, temporarily, and in `context_chars` the character range of each token.

    Many questions share a context, which is encoded once.
    """
    tokens, chars = Flat(arrays, kept, token_type(tokenizer)), Flat(arrays, "context_chars", np.int32)
    for piece in pieces(len(frame)):
        written = texts(frame.column(name).slice(piece.start, piece.stop - piece.start))
        different = list(dict.fromkeys(written))
        known = dict(zip(different, tokenizer.encode_with_offsets(different), strict=True))
        tokens.add([known[text][0] for text in written])
        chars.add([[edge for place in known[text][1] for edge in place] for text in written])
    tokens.close()
    chars.close()
    return arrays[kept], arrays[f"{kept}_starts"]


def characters(arrays: Arrays, row: int) -> np.ndarray:
    """The character ranges (S,2) of the tokens of a row's context: start, stop."""
    starts = arrays["context_chars_starts"]
    return np.asarray(arrays["context_chars"][starts[row] : starts[row + 1]]).reshape(-1, 2)


def answer_tokens(arrays: Arrays, row: int, place: Place | None) -> TokenSpan | None:
    """The first and last token of the context that overlap the answer; None if it is unknown."""
    if place is None or place == ABSENT_ANSWER:
        return None if place is None else ABSENT_TOKENS
    chars = characters(arrays, row)
    touched = np.flatnonzero((chars[:, 1] > place.start) & (chars[:, 0] < place.stop))
    return TokenSpan(int(touched[0]), int(touched[-1])) if len(touched) else None


class WindowWriter:
    """Appends the windows of one row after another to arrays."""

    def __init__(self, tokenizer: Tokenizer, length: int, stride: int, arrays: Arrays) -> None:
        self.framer, self.stride, self.arrays = Framer(tokenizer, length, 2), stride, arrays
        self.tokens = Flat(arrays, "tokens", token_type(tokenizer))
        self.second: list[int] = []  # start of the second text, from its token types
        self.at: list[tuple[int, int, int]] = []  # the context's first position, its tokens, those before the window
        self.targets: list[tuple[int, int]] = []
        self.starts = [0]

    def add(self, question: Sequence[int], context: Sequence[int], answer: TokenSpan | None) -> bool:
        """Write the windows of a row; returns whether its question was cut."""
        most = min(MOST_OF_QUESTION, self.framer.room // 2)
        question, cut = question[:most], len(question) > most
        marks = self.framer.marks
        first = len(marks.first) + len(question) + len(marks.middle)
        for begin, stop in self.windows(len(context), self.framer.room - len(question)):
            row, second, _ = self.framer([question, context[begin:stop]])
            self.tokens.add([row])
            self.second.append(second)
            self.at.append((first, stop - begin, begin))
            self.targets.append(self.target(answer, begin, stop, first))
        self.starts.append(len(self.at))
        return cut

    def target(self, answer: TokenSpan | None, begin: int, stop: int, first: int) -> tuple[int, int]:
        """The answer's positions in a window that contains the context's tokens from `begin` up to `stop`."""
        if answer is None:
            return IGNORED, IGNORED
        if answer == ABSENT_TOKENS or answer.first < begin or answer.last >= stop:
            return NOWHERE, NOWHERE
        return first + answer.first - begin, first + answer.last - begin

    def windows(self, size: int, room: int) -> Iterator[tuple[int, int]]:
        """The range of context tokens of each window."""
        step = room - min(self.stride, room // 2)
        begin = 0
        while begin + room < size:
            yield begin, begin + room
            begin += step
        yield begin, size

    def close(self, *, segments: bool) -> None:
        """Store what was written as arrays."""
        self.tokens.close()
        self.arrays.put("windows_starts", np.array(self.starts, np.int64))
        self.arrays.put("context_at", np.array(self.at, np.int32).reshape(-1, 3))
        if segments:
            self.arrays.put("second", np.array(self.second, np.int32))
        self.arrays.put("targets", np.array(self.targets, np.int64).reshape(-1, 2))

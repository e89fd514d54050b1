"""Extractive answers: which columns are question, context and answer, and the position of each answer in its context.

Answers are in SQuAD's format (1606.05250): accepted texts, and the start of the first one. A question with an empty
answer cell has no answer in its context (1806.03822).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from anyformer.data.columns.cells import some, texts
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.frame import Frame
from anyformer.data.targets import Encoded, Target
from anyformer.errors import UserError

CONTEXTS = ("context", "passage", "paragraph")
QUESTIONS = ("question", "query")
ANSWERS = ("answer", "answers", "answer_text", "answers.text", "answer.text")
STARTS = ("answer_start", "answers.answer_start", "answer.answer_start")
LOOKED_AT = 1000  # rows examined to identify columns
MOSTLY = 0.9  # fraction of answers that must be in their context to detect the task


class Place(NamedTuple):
    """Character range of an answer in its context: from `start` to `stop`, exclusive."""

    start: int
    stop: int
    moved: bool = False  # found elsewhere than the file says


class AnswerSpan(Target):
    """A passage of the column `context` that answers the column `question`.

    `names` are the column of the answers and, where there is one, that of where they begin.
    """

    question: str
    context: str
    stride: int  # overlap in tokens of neighbouring windows of a long context
    max_answer_length: int  # in tokens
    unanswered: int = 0  # training rows without an answer in their context

    @property
    def may_be_absent(self) -> bool:
        """Whether the model may predict that the context has no answer."""
        return self.unanswered > 0

    def encode(self, frame: Frame) -> Encoded:
        """A placeholder: the token positions of answers are found with the inputs."""
        return Encoded(np.zeros(len(frame), np.int64))

    def put(self, arrays: Arrays, encoded: Encoded) -> None:
        """Nothing to do: the targets are already written."""

    def describe(self, rows: int) -> str:
        none = f"; {some(self.unanswered, 'training row')} without one" if self.unanswered else ""
        return f"a passage of {self.context}, of at most {self.max_answer_length} tokens{none}"

    def warnings(self) -> list[str]:
        if len(self.names) > 1:
            return []
        return ["no column says where an answer begins: its first place in the context is taken"]


# ---------------------------------------------------------------- cells


def read_answers(frame: Frame, name: str) -> list[list[str]]:
    """The accepted answers of every row, the first of which is the target; none if the cell is empty."""
    return [[str(text) for text in as_list(cell) if text] for cell in frame.column(name).to_pylist()]


def read_starts(frame: Frame, name: str | None) -> list[int | None]:
    """Start of the first answer of every row as given by the file; None if not given."""
    if name is None:
        return [None] * len(frame)
    return [as_number(next(iter(as_list(cell)), None)) for cell in frame.column(name).to_pylist()]


def as_list(cell: Any) -> Sequence[Any]:
    return cell if isinstance(cell, list) else () if cell is None else (cell,)


def as_number(cell: Any) -> int | None:
    try:
        return None if cell is None else int(float(cell))
    except (ValueError, OverflowError):
        return None


def find_answer(context: str, answer: str, start: int | None) -> Place | None:
    """Position of an answer: at `start`, else nearest to it; without a start, its first occurrence.

    >>> find_answer("to be or not to be", "be", 16), find_answer("to be or not to be", "be", None)
    (Place(start=16, stop=18, moved=False), Place(start=3, stop=5, moved=False))
    """
    if start is not None and start >= 0 and context.startswith(answer, start):
        return Place(start, start + len(answer))
    at = context.find(answer)
    if at < 0 or start is None:
        return None if at < 0 else Place(at, at + len(answer))
    before = context.rfind(answer, 0, max(0, start) + len(answer))
    after = context.find(answer, max(0, start))
    near = min((found for found in (before, after) if found >= 0), key=lambda found: abs(found - start))
    return Place(near, near + len(answer), moved=True)


ABSENT_ANSWER = Place(0, 0)  # no answer in the context


def find_answers(frame: Frame, names: Sequence[str], context: str, *, may_be_absent: bool) -> list[Place | None]:
    """Position of the first answer of every row; None if unknown.

    A row without an answer is one whose context has none if it `may_be_absent`, else one that is not annotated.
    """
    answers = read_answers(frame, names[0])
    starts = read_starts(frame, names[1] if len(names) > 1 and names[1] in frame.names else None)
    none = ABSENT_ANSWER if may_be_absent else None
    return [find_answer(text, found[0], start) if found else none
            for text, found, start in zip(texts(frame.column(context)), answers, starts, strict=True)]  # fmt: skip


# ---------------------------------------------------------------- columns


@dataclass(frozen=True)
class QuestionColumns:
    """The columns of questions about contexts."""

    question: str
    context: str


def named_like(frame: Frame, names: Sequence[str]) -> str | None:
    """The first column of the frame with one of the given names."""
    return next((name for name in frame.names if name.lower() in names), None)


def share_inside(frame: Frame, answer: str, context: str) -> float:
    """The fraction of answers contained in a column, over the first rows with an answer; 0 if there are none."""
    some_rows = frame.take(np.arange(min(len(frame), LOOKED_AT)))
    pairs = [(answers[0], text) for answers, text in zip(read_answers(some_rows, answer),
             texts(some_rows.column(context)), strict=True) if answers]  # fmt: skip
    return sum(found in text for found, text in pairs) / len(pairs) if pairs else 0.0


def find_columns(frame: Frame, answer: str, written: Sequence[str]) -> QuestionColumns:
    """Question and context among the text columns: by name, else the context is the column that contains the
    answers."""
    context, question = named_like(frame.of(written), CONTEXTS), named_like(frame.of(written), QUESTIONS)
    if context is None:
        rest = [name for name in written if name != question]
        context = max(rest, key=lambda name: share_inside(frame, answer, name), default=None)
    others = [name for name in written if name != context]
    question = question or (others[0] if len(others) == 1 else None)
    if context is None or question is None:
        raise UserError(f"question and context are not told apart among {', '.join(written[:4]) or 'no text'}",
                        where="--task qa", fix="name the columns question and context, or give both by --inputs"
                        )  # fmt: skip
    if not share_inside(frame, answer, context):
        raise UserError(f"no answer of {answer!r} stands in {context!r}", where="--task qa",
                        fix="give a context that holds the answers")  # fmt: skip
    return QuestionColumns(question, context)

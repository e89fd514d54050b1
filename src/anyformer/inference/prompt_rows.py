"""Evaluation questions for a language model: table rows with choices, and prompts made from them by a template."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.columns.cells import texts
from anyformer.data.frame import Frame
from anyformer.data.gather import gather
from anyformer.data.settings import Data
from anyformer.errors import UserError, did_you_mean
from anyformer.safe_files import scratch_folder

TEMPLATE = "Question: {question}\nAnswer: {answer}\n\n"
QUESTIONS = ("question", "text", "prompt", "input")
ANSWERS = ("answer", "label", "target", "answerkey")
CHOICES = ("choices", "choices.text", "options")
CHOICE = re.compile(r"choice_?([a-z0-9])$")
BETWEEN = "|"  # separator of choices in a text cell
MOST_LABELS = 50  # most distinct answers that are used as choices without a choices column
FIELD = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True)
class PromptRow:
    """A question with its answer; `choices` is empty for free-form answers."""

    place: str
    cells: Mapping[str, str]  # template fields, with the question as "question"
    answer: str
    choices: tuple[str, ...] = ()

    @property
    def right(self) -> int:
        """Index of the right choice."""
        return self.choices.index(self.answer)


@dataclass(frozen=True)
class Template:
    """A prompt template: the text before the answer, and the end of an example."""

    before: str
    after: str

    @classmethod
    def parse(cls, text: str) -> Template:
        r"""Parse a template as typed, in which \n and \t are a line break and a tab.

        >>> Template.parse(r"Q: {question}\nA: {answer}\n")
        Template(before='Q: {question}\nA: ', after='\n')
        """
        before, answer, after = text.replace("\\n", "\n").replace("\\t", "\t").partition("{answer}")
        if not answer or "{answer}" in after or "{" in after:
            raise UserError("a template names {answer} once, behind all other columns", where="--template",
                            fix="write 'Question: {question}\\nAnswer: {answer}\\n\\n'")  # fmt: skip
        return cls(before, after)

    def prompt(self, row: PromptRow) -> str:
        """A row without its answer."""

        def fill(match: re.Match[str]) -> str:
            if match[1] not in row.cells:
                raise UserError(f"unknown column {match[1]!r}", where="--template",
                                fix=did_you_mean(match[1], row.cells))  # fmt: skip
            return row.cells[match[1]]

        return FIELD.sub(fill, self.before)

    def example(self, row: PromptRow) -> str:
        """A row with its answer."""
        return self.prompt(row) + row.answer + self.after


# ---------------------------------------------------------------- rows


def read_prompt_rows(paths: Sequence[Path], *, choose: bool) -> list[PromptRow]:
    """Read rows of tables; with `choose` each has choices: its own, or all answers of the files."""
    with scratch_folder() as cache:
        frame = gather(list(paths), "table", Data(), cache).frame
        question, answer = column_named(frame, QUESTIONS, "a question"), column_named(frame, ANSWERS, "an answer")
        columns = {name: texts(frame.column(name)) for name in frame.names}
        own = own_choices(frame)
        places = [frame.place(row) for row in range(len(frame))]
    answers = columns[answer]
    labels = tuple(sorted(set(answers))) if own is None and choose else ()
    if len(labels) > MOST_LABELS:
        raise UserError(f"{answer} has {len(labels):,} different values, too many to be choices", where=paths[0].name,
                        fix="add a column choices, or use --by generate")  # fmt: skip
    rows = []
    for at, place in enumerate(places):
        cells = {name: column[at] for name, column in columns.items()} | {"question": columns[question][at]}
        choices = labels if own is None else own[at]
        rows.append(PromptRow(place, cells, pick_answer(answers[at], choices, place), choices))
    return rows


def column_named(frame: Frame, names: Sequence[str], what: str) -> str:
    found = next((name for wanted in names for name in frame.names if name.lower() == wanted), None)
    if found is None:
        where = frame.sources[0].name if frame.sources else "data"
        raise UserError(f"no column is {what} (columns: {', '.join(frame.names[:8])})", where=where,
                        fix=f"name one {names[0]}")  # fmt: skip
    return found


def own_choices(frame: Frame) -> list[tuple[str, ...]] | None:
    """The choices of every row: lists in one column, or one column per choice; None if there are none."""
    name = next((name for name in frame.names if name.lower() in CHOICES), None)
    if name is not None:
        return [tuple(split_choices(cell)) for cell in frame.column(name).to_pylist()]
    names = sorted((match[1], name) for name in frame.names if (match := CHOICE.match(name.lower())))
    if not names:
        return None
    each = [texts(frame.column(name)) for _, name in names]
    return [tuple(text for text in row if text) for row in zip(*each, strict=True)]


def split_choices(cell: Any) -> list[str]:
    """Parse a list, a JSON list, or texts separated by |."""
    if isinstance(cell, str):
        try:
            read = json.loads(cell) if cell.lstrip().startswith("[") else None
        except ValueError:
            read = None
        cell = read if isinstance(read, list) else cell.split(BETWEEN)
    return [str(choice).strip() for choice in cell or () if str(choice).strip()]


def pick_answer(cell: str, choices: Sequence[str], place: str) -> str:
    """Resolve an answer to a choice: by its text, its letter (A is the first), or its number from 0."""
    text = cell.strip()
    if not choices or text in choices:
        return text
    if len(text) == 1 and text.upper() in string.ascii_uppercase[: len(choices)]:
        return choices[string.ascii_uppercase.index(text.upper())]
    if text.isdecimal() and int(text) < len(choices):
        return choices[int(text)]
    raise UserError(f"the answer {text[:40]!r} is none of the choices", where=place,
                    fix=f"give one of {', '.join(choices)[:80]}, its letter, or its number from 0")  # fmt: skip


def majority(rows: Sequence[PromptRow]) -> tuple[float, str]:
    """Majority baseline: the accuracy of the most frequent answer, or position among the choices, and its name."""
    if len({row.choices for row in rows}) == 1:
        answer, count = Counter(row.answer for row in rows).most_common(1)[0]
        return count / len(rows), f"always {answer!r}"
    place, count = Counter(row.right for row in rows).most_common(1)[0]
    return count / len(rows), f"always choice {place + 1}"


def draw_examples(rows: int, row: int | None, shots: int, seed: int) -> np.ndarray:
    """Draw few-shot examples, never `row` itself; fewer shots use a prefix of those for more shots."""
    order = np.random.default_rng((seed, rows if row is None else row)).permutation(rows)
    return order[order != row][:shots]

"""Preprocess: everything fitted to the training rows, saved with the weights as preprocess.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyformer.data.calibration import Calibration
from anyformer.data.columns.kinds import Column, kind_named, modalities
from anyformer.data.columns.modality import Modality
from anyformer.data.columns.parsed import Parsed
from anyformer.data.decision import Decision, name_of
from anyformer.data.frame import Frame
from anyformer.data.settings import Data
from anyformer.data.targets import Classes, Target, Values
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.errors import UserError, did_you_mean
from anyformer.safe_files import inside, read_text
from anyformer.spec import Spec

FILE = "preprocess.json"


class Preprocess(Spec):
    """How rows become arrays: the columns, what is predicted, and how text is cut.

    Two texts on their own are a pair, as the tokenizer writes pairs; else several texts are one after the other.
    """

    task: str
    columns: tuple[Column, ...] | None = None
    target: Target | None = None
    length: int | None = None  # tokens of a row at most
    segments: bool = False  # two texts are told apart by token types
    start: int | None = None  # the token a written text begins with
    unknown: Literal["bucket", "error"] = "bucket"
    calibration: Calibration | None = None  # fitted on validation rows, once the model is trained

    def check(self) -> None:
        names = [column.name for column in self.columns or ()]
        if len(set(names)) != len(names):
            raise UserError("a column comes twice", where="Preprocess.columns", fix="train again")
        if self.length is not None and not 2 <= self.length <= 2**24:
            raise UserError(f"length {self.length} is out of range", where="Preprocess", fix="train again")

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the classes or tags."""
        return None if self.target is None else self.target.label_names()

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The names of the classes or tags, or of the predicted numbers."""
        return self.labels or (self.target.names if isinstance(self.target, Values) else ())

    @property
    def multi(self) -> bool:
        """Whether a row may have several labels."""
        return isinstance(self.target, Classes) and self.target.multi

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The network's inputs from the columns; none if the target defines the row's part."""
        return () if self.target is not None and self.target.part else modalities(self.columns or ())

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of a row by name: text, table, image, audio, in this order; or a series."""
        if self.target is not None and self.target.part:
            return (self.target.part,)
        return tuple(modality.name for modality in self.modalities)

    @property
    def texts(self) -> tuple[Column, ...]:
        """The columns that a tokenizer reads."""
        return tuple(column for column in self.columns or () if column.is_text)

    @property
    def writes_text(self) -> bool:
        """Whether predictions are generated text."""
        return self.target is not None and self.target.writes_text

    @property
    def pair(self) -> bool:
        """Whether a row is two texts and nothing else."""
        return not self.writes_text and len(self.texts) == len(self.columns or ()) == 2

    def with_column(self, column: Column) -> Preprocess:
        """The preprocessing with the column of this name replaced."""
        return self.replace(columns=tuple(column if column.name == c.name else c for c in self.columns or ()))

    @classmethod
    def read(cls, path: Path) -> Preprocess:
        """The preprocessing saved in a folder."""
        try:
            return cls.from_json(read_text(inside(path.parent, path.name)))
        except UserError as error:
            raise error.inside(path.name) from None


def fit_preprocess(
    frame: Frame, decision: Decision, rows: np.ndarray, settings: Data, *, seed: int,
    labels: list[str] | None = None, parsed: Parsed | None = None,
) -> Preprocess:  # fmt: skip
    """Fit columns and target to the training `rows` of the frame; no other row is used."""
    parsed = parsed or Parsed(frame)
    columns: list[Column] = []
    for column in decision.inputs:
        kind, form = kind_named(column.kind), column.facts.form
        values = parsed.values(kind, column.name, form)
        trained = None if values is None else values[rows] if isinstance(values, np.ndarray) else values.take(rows)
        columns.append(kind.fit(column.name, trained, settings.columns, seed=seed, form=form))
    trained = frame.of(decision.target).take(rows)
    target = decision.task.fit_target(trained, decision, settings, labels)
    return Preprocess(task=decision.task.name, columns=tuple(columns), target=target, unknown=settings.columns.unknown)


def fitting(frame: Frame, preprocess: Preprocess) -> tuple[Frame, list[str]]:
    """The frame's columns needed by the preprocessing, by name; others are ignored, with a note."""
    needed = [column.name for column in preprocess.columns or ()]
    wanted = [*needed, *(preprocess.target.names if preprocess.target else ())]
    lost = [name for name in needed if name not in frame.names]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise UserError(
            f"the column {lost[0]!r}{more} is missing, which the model was trained on", where=name_of(frame),
            fix=did_you_mean(lost[0], [name for name in frame.names if name not in wanted] or frame.names),
            details=[f"missing: {name}" for name in lost],
        )  # fmt: skip
    extra = [name for name in frame.names if name not in wanted]
    there = [name for name in dict.fromkeys(wanted) if name in frame.names]
    more = f" and {len(extra) - 6} more" if len(extra) > 6 else ""
    notes = [f"ignored {', '.join(extra[:6])}{more}: not among the columns trained on"] if extra else []
    return frame.of(there), notes


def sizes(preprocess: Preprocess, tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """The data sizes that a network must be built for."""
    found: dict[str, Any] = {"parts": list(preprocess.parts)}
    if tokenizer is not None:
        found |= {"vocab": tokenizer.size, "length": preprocess.length, "pad": tokenizer.pad}
        found |= {"segments": 2 if preprocess.segments else 0}
    for modality in preprocess.modalities:
        found |= modality.sizes()
    if preprocess.target is not None:
        found |= preprocess.target.sizes()
        if preprocess.target.part:
            found["length"] = preprocess.length
    if preprocess.start is not None:
        found["start"] = preprocess.start
    return found

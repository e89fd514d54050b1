"""A trained model's answers on new files or data, and those answers as a table of the input rows."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.prepare import examples_for, frame_for
from anyformer.data.preprocess import Preprocess
from anyformer.data.reading import frame_of
from anyformer.data.settings import Data
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.objectives import OBJECTIVES, Objective
from anyformer.training.judge import Judge

if TYPE_CHECKING:
    from anyformer.predictor import Predictor


def answer(
    predictor: Predictor, source: Any, *, batch: int = 32, settings: Data | None = None, say: Any = None
) -> Answers:
    """Answers for every row of files, a table, or a plain list where the model reads one column."""
    preprocess = predictor.preprocess
    assert preprocess is not None
    with tempfile.TemporaryDirectory(prefix="anyformer-") as folder:
        cache = Path(folder)
        frame, notes = frame_for(as_rows(source, preprocess), preprocess, settings or Data(), cache)
        if not len(frame):
            raise UserError("there are no rows", fix="give at least one")
        examples, counts = examples_for(frame, preprocess, predictor.tokenizer, cache, images=predictor.images)
        for line in [*notes, *counts_in_words(counts)]:
            if say is not None:
                say(line)
        judge = Judge(objective_of(preprocess), preprocess, predictor.tokenizer, batch=batch)
        found = judge(predictor.model, examples)
        found.extra.clear()
        return found


def as_rows(source: Any, preprocess: Preprocess) -> Any:
    """A plain list as the one column the model reads; anything else as it is."""
    names = [column.name for column in preprocess.columns or ()]
    if isinstance(source, str | Path):
        return [Path(source)]
    if isinstance(source, Sequence) and source and not isinstance(source[0], dict | Path) and len(names) == 1:
        return frame_of({names[0]: list(source)})
    return source


def objective_of(preprocess: Preprocess) -> Objective:
    kind = OBJECTIVES[preprocess.task]
    return kind(multi=preprocess.multi) if preprocess.task == "classify" else kind()  # type: ignore[call-arg]


def counts_in_words(counts: Any) -> list[str]:
    """What was cut, missing or unknown in new rows."""
    return [f"{name}: {value}" for name, value in counts.plain().items() if value]


def predictions(answers: Answers) -> list[Any]:
    """One answer a row, as a person would write it: labels as in the training file, numbers, tags, texts."""
    if answers.task == "classify":
        labels = answers.labels or []
        if answers.multi:
            return [[labels[i] for i in np.flatnonzero(row)] for row in np.asarray(answers.predicted)]
        return [labels[i] for i in answers.predicted]
    if answers.task == "regress":
        return np.asarray(answers.predicted).tolist()
    return list(answers.predicted)


def cells(answers: Answers) -> dict[str, list[Any]]:
    """The columns that a prediction file gets: `prediction`, and `probability` where there is one."""
    found = predictions(answers)
    if answers.task == "tag":
        return {"prediction": [" ".join(tags) for tags in found]}
    if answers.task == "regress" and answers.labels and len(answers.labels) > 1:
        return {f"prediction_{name}": [row[i] for row in found] for i, name in enumerate(answers.labels)}
    if answers.multi:
        share = np.asarray(answers.probability)
        labels = answers.labels or []
        return {"prediction": [";".join(row) for row in found]} | {
            f"probability_{name}": share[:, i].round(6).tolist() for i, name in enumerate(labels)
        }
    columns: dict[str, list[Any]] = {"prediction": found}
    if answers.probability is not None:
        columns["probability"] = np.asarray(answers.probability).max(1).round(6).tolist()
    return columns

"""A trained model's answers on new files or data, and those answers as a table of the input rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.cells import some
from anyformer.data.columns import Image, Sound
from anyformer.data.counts import Counts
from anyformer.data.frame import Frame
from anyformer.data.prepare import examples_for, frame_for
from anyformer.data.preprocess import Preprocess
from anyformer.data.reading import frame_of
from anyformer.data.series_target import Future
from anyformer.data.settings import Data
from anyformer.data.sound_folders import unlabelled as unlabelled_sounds
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.objectives import OBJECTIVES, Objective
from anyformer.outputs import scratch_folder
from anyformer.training.judge import Judge
from anyformer.training.new_pictures import unlabelled

if TYPE_CHECKING:
    from anyformer.predictor import Predictor


@dataclass
class Asked:
    """Answers, and which rows they are worth less for."""

    answers: Answers
    cut: np.ndarray  # (N,) whose text was longer than the model takes
    unseen: np.ndarray  # (N,) whose picture could not be read
    skipped: dict[str, int]  # rows that could not be read at all, by reason


def answer(
    predictor: Predictor, source: Any, *, batch: int = 32, settings: Data | None = None, say: Any = None
) -> Answers:
    """Answers for every row of files, a table, or a plain list where the model reads one column."""
    return asked(predictor, source, batch=batch, settings=settings, say=say).answers


def asked(
    predictor: Predictor, source: Any, *, batch: int = 32, settings: Data | None = None, say: Any = None,
    judged: bool = False,
) -> Asked:  # fmt: skip
    """Answers for every row, and what is to be known of the rows. `judged`: the true answers must be there too."""
    preprocess = predictor.preprocess
    assert preprocess is not None
    with scratch_folder() as cache:
        rows = as_rows(source, preprocess, judged=judged)
        frame, notes = frame_for(rows, preprocess, settings or Data(), cache)
        if not len(frame):
            raise UserError("there are no rows", fix="give at least one")
        if judged:
            check_target(frame, preprocess)
        if isinstance(preprocess.target, Future):
            from anyformer.training.forecasting import windows_of

            windows = windows_of(frame, preprocess, cache, say or (lambda line: None))
            judge = Judge(objective_of(preprocess), preprocess, None, batch=batch)
            steps = judge(predictor.model, windows)
            nothing = np.zeros(len(steps.truth), bool)
            return Asked(steps, nothing, nothing, dict(frame.skipped))
        examples, counts = examples_for(frame, preprocess, predictor.tokenizer, cache, images=predictor.images)
        skipped = [f"skipped  {count:,} rows: {reason}" for reason, count in frame.skipped.items()]
        for line in [*notes, *skipped, *counts_in_words(counts, preprocess)]:
            if say is not None:
                say(line)
        judge = Judge(objective_of(preprocess), preprocess, predictor.tokenizer, batch=batch)
        found = judge(predictor.model, examples)
        found.extra.clear()
        # The arrays go with the folder: what is asked of them later is taken along.
        marks = [np.zeros(len(examples), bool), np.zeros(len(examples), bool)]
        for at, name in enumerate(("cut", "seen")):
            if name in examples.arrays:
                kept = np.array(examples.arrays[name], dtype=bool)
                marks[at] = kept if name == "cut" else ~kept
        return Asked(found, marks[0], marks[1], dict(frame.skipped))


def check_target(frame: Frame, preprocess: Preprocess) -> None:
    """A file without the target column cannot be judged."""
    lost = [name for name in (preprocess.target.names if preprocess.target else ()) if name not in frame.names]
    if lost:
        where = frame.sources[0].name if frame.sources else "data"
        fix = did_you_mean(lost[0], frame.names)
        raise UserError(f"there is no column {lost[0]!r} to compare with", where=where,
                        fix=fix if "did you mean" in fix else "use predict for new rows")  # fmt: skip


def as_rows(source: Any, preprocess: Preprocess, *, judged: bool = False) -> Any:
    """A plain list as the one column the model reads, pictures without labels too; anything else as it is."""
    columns = preprocess.columns or ()
    if isinstance(source, str | Path):
        source = [Path(source)]
    if not isinstance(source, Sequence) or not source or len(columns) != 1:
        return source
    if isinstance(source[0], Path) and isinstance(columns[0], Image) and not judged:
        names = unlabelled(source)
        return source if names is None else frame_of({columns[0].name: names})
    if isinstance(source[0], Path) and isinstance(columns[0], Sound) and not judged:
        clips = unlabelled_sounds(source)
        return source if clips is None else frame_of({columns[0].name: clips})
    return source if isinstance(source[0], dict | Path) else frame_of({columns[0].name: list(source)})


def objective_of(preprocess: Preprocess) -> Objective:
    kind = OBJECTIVES[preprocess.task]
    return kind(multi=preprocess.multi) if preprocess.task == "classify" else kind()  # type: ignore[call-arg]


def counts_in_words(counts: Counts, preprocess: Preprocess) -> list[str]:
    """What was cut, missing or unknown in new rows."""
    lines = []
    if counts.cut:
        lines.append(f"cut      {some(counts.cut, 'row')} at {preprocess.length} tokens")
    if counts.missing:
        said = ", ".join(f"{name} {count:,}" for name, count in list(counts.missing.items())[:10])
        lines.append(f"missing  cells without a value: {said}")
    lines += [f"missing  {name}: {some(n, 'cell')} among them cannot be read, first {counts.odd_first[name]}"
              for name, n in counts.odd.items()]  # fmt: skip
    lines += [f"unknown  {name}: {some(n, 'cell')} with a value that training did not have, first "
              f"{counts.unknown_first[name]}" for name, n in counts.unknown.items()]  # fmt: skip
    return lines


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


def spoken(answers: Answers) -> list[dict[str, Any]]:
    """One answer a row in plain words and numbers, all probabilities included: what a server says."""
    found, labels = predictions(answers), answers.labels or []
    if answers.task == "classify":
        shares = np.asarray(answers.probability)
        return [named(one, share, labels, answers.multi) for one, share in zip(found, shares, strict=True)]
    if answers.task == "regress":
        if len(labels) > 1:
            return [{"values": dict(zip(labels, map(finite, row), strict=True))} for row in found]
        return [{"value": finite(value)} for value in found]
    return [{"tags" if answers.task == "tag" else "text": value} for value in found]


def named(label: Any, shares: np.ndarray, labels: Sequence[str], multi: bool = False) -> dict[str, Any]:
    """A class with its probability, or all labels that hold, and the probability of every one."""
    scores = dict(zip(labels, digits(shares), strict=True))
    if multi:
        return {"labels": label, "scores": scores}
    return {"label": label, "probability": scores[label], "scores": scores}


def finite(value: float) -> float | None:
    """A number that JSON can write."""
    return value if np.isfinite(value) else None


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
            f"probability_{name}": digits(share[:, i]) for i, name in enumerate(labels)
        }
    columns: dict[str, list[Any]] = {"prediction": found}
    if answers.probability is not None:
        columns["probability"] = digits(np.asarray(answers.probability).max(1))
    return columns


def digits(values: np.ndarray) -> list[float]:
    """Six digits are enough for a file."""
    return values.astype(np.float64).round(6).tolist()

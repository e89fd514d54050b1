"""A trained model's answers on new rows: files, tables, or rows of Python and JSON, all read by one rule.

One answer a row, in their order. A row that cannot be read is an error that names it, unless such rows are to be
skipped: then they have no answer, and it is told which they are. Rows that are in memory already touch no disk.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anyformer.data.columns.cells import some
from anyformer.data.counts import Counts
from anyformer.data.files.tables import frame_of
from anyformer.data.frame import Frame
from anyformer.data.new_rows import NewRows, parse_rows, parse_table, placed
from anyformer.data.prepare import examples_for, frame_for, frame_of_model
from anyformer.data.preprocess import Preprocess
from anyformer.data.series_target import Future
from anyformer.data.settings import Data
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.inference.judge import Judge
from anyformer.objectives import OBJECTIVES, Objective
from anyformer.safe_write import scratch_folder

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor

logger = logging.getLogger("anyformer")
OnBadRows = Literal["error", "skip"]
ON_BAD_ROWS = ("error", "skip")
TOLD = 5  # bad rows that are named one by one


@dataclass
class Asked:
    """Answers to the rows that could be read, and what became of the others."""

    frame: Frame  # all rows as they came
    answers: Answers | None  # None where no row could be read
    rows: np.ndarray  # numbers of the rows that are answered
    cut: np.ndarray  # which of those had a text longer than the model takes
    bad: dict[int, UserError]  # the other rows, each with what is wrong with it
    counts: Counts

    def aligned(self, values: Sequence[Any]) -> list[Any]:
        """Values of the answered rows with None in the place of the others."""
        found: list[Any] = [None] * len(self.frame)
        for row, value in zip(self.rows.tolist(), values, strict=True):
            found[row] = value
        return found


def answer(predictor: Predictor, source: Any, *, batch: int = 32) -> Answers:
    """Answers to all rows of files, a table or a list, every one of which must be read."""
    found = asked(predictor, source, batch=batch)
    assert found.answers is not None and predictor.preprocess is not None
    warn_cut(found, predictor.preprocess)
    return found.answers


def predicted(predictor: Predictor, source: Any, *, batch: int, on_bad_rows: OnBadRows = "error") -> list[Any]:
    """What `predict` gives: one answer a row, as a person would write it, None for a row that is skipped."""
    assert predictor.preprocess is not None
    if predictor.preprocess.task == "detect":
        from anyformer.inference.detecting import detected_objects

        return detected_objects(predictor, source, batch=batch, on_bad_rows=on_bad_rows)[1]
    if isinstance(predictor.preprocess.target, Future):
        from anyformer.inference.forecasting import forecasts

        return forecasts(predictor, source, on_bad_rows=on_bad_rows)
    found = asked(predictor, source, batch=batch, on_bad_rows=on_bad_rows)
    warn_cut(found, predictor.preprocess)
    return found.aligned([] if found.answers is None else predictions(found.answers))


def probabilities(predictor: Predictor, source: Any, *, batch: int, on_bad_rows: OnBadRows = "error") -> np.ndarray:
    """Probabilities (rows, classes), nan for a row that is skipped."""
    preprocess = predictor.preprocess
    assert preprocess is not None
    if preprocess.task != "classify":
        raise UserError("this model gives no probabilities", fix="use predict")
    found = asked(predictor, source, batch=batch, on_bad_rows=on_bad_rows)
    warn_cut(found, preprocess)
    share = np.full((len(found.frame), len(preprocess.labels or ())), np.nan, np.float32)
    if found.answers is not None:
        share[found.rows] = found.answers.probability
    return share


def warn_cut(found: Asked, preprocess: Preprocess) -> None:
    """Say which texts were longer than the model takes."""
    if found.cut.any():
        rows = found.rows[found.cut]
        logger.warning(f"cut      {some(len(rows), 'row')} at {preprocess.length} tokens: rows {ranges(rows.tolist())}")


def asked(
    predictor: Predictor, source: Any, *, batch: int = 32, settings: Data | None = None, say: Any = None,
    judged: bool = False, on_bad_rows: OnBadRows = "error",
) -> Asked:  # fmt: skip
    """Answers to every row, and what is to be known of the rows. `judged`: the true answers must be there too."""
    if on_bad_rows not in ON_BAD_ROWS:
        raise UserError(f"{on_bad_rows!r} says nothing about bad rows", where="on_bad_rows",
                        fix=did_you_mean(str(on_bad_rows), ON_BAD_ROWS))  # fmt: skip
    preprocess = predictor.preprocess
    assert preprocess is not None
    rows = given_rows(source, preprocess, judged=judged)
    files = is_files(rows)
    with room_for(files) as cache:
        if files:
            assert cache is not None
            frame, notes = frame_for(rows, preprocess, (settings or Data()).replace(bad=on_bad_rows), cache)
            new = parse_table(frame, preprocess)
        elif isinstance(rows, Frame):
            frame, notes = frame_of_model(rows, preprocess)
            new = parse_table(frame, preprocess)
        else:
            new = parse_rows(rows, preprocess)
            frame, notes = new.frame, []
        if judged:
            check_target(frame, preprocess)
        if isinstance(preprocess.target, Future):
            return asked_windows(predictor, frame, batch=batch, say=say or logger.warning)
        found = answer_rows(predictor, new, frame, cache, batch=batch, on_bad_rows=on_bad_rows)
        for line in [*notes, *counts_in_words(found.counts, preprocess)] if say is not None else ():
            say(line)
        for reason, count in frame.skipped.items():
            first = ", ".join(frame.skipped_at.get(reason, ()))
            (say or logger.warning)(f"skipped  {some(count, 'row')}: {reason}" + (f" ({first})" if first else ""))
        report_bad({row: placed(error, frame, row) for row, error in found.bad.items()}, "skip", say or logger.warning)
        return found


def asked_windows(predictor: Predictor, frame: Frame, *, batch: int, say: Any) -> Asked:
    """A forecast for every window of a series that what comes after it is known of, to be judged."""
    from anyformer.inference.forecasting import windows_of

    preprocess = predictor.preprocess
    assert preprocess is not None
    judge = Judge(objective_of(preprocess), preprocess, None, batch=batch)
    steps = judge(predictor.model, windows_of(frame, preprocess, say))
    count = len(steps.truth)
    return Asked(frame, steps, np.arange(count), np.zeros(count, bool), {}, Counts(count))


def answer_rows(
    predictor: Predictor, new: NewRows, frame: Frame, cache: Path | None = None, *, batch: int = 32,
    on_bad_rows: OnBadRows = "skip",
) -> Asked:  # fmt: skip
    """Answers to rows that have been read; arrays are in the folder `cache`, or in memory where there is none."""
    preprocess = predictor.preprocess
    assert preprocess is not None
    examples, counts = examples_for(new.frame, preprocess, predictor.tokenizer, cache, images=predictor.images)
    bad = dict(sorted((counts.unread | new.bad).items()))
    if on_bad_rows == "error":  # before the model does any work
        report_bad({row: placed(error, frame, row) for row, error in bad.items()}, on_bad_rows, None)
    for error in new.bad.values():  # an empty cell stands for it, which is told as what it is
        if counts.missing.get(error.where):
            counts.missing[error.where] -= 1
    good = np.array([row for row in range(len(frame)) if row not in bad], np.int64)
    cut = np.array(examples.arrays["cut"], bool)[good] if "cut" in examples.arrays else np.zeros(len(good), bool)
    if not len(good):
        return Asked(frame, None, good, cut, bad, counts)
    examples.rows = good
    judge = Judge(objective_of(preprocess), preprocess, predictor.tokenizer, batch=batch)
    found = judge(predictor.model, examples)
    found.extra.clear()
    return Asked(frame, found, good, cut, bad, counts)


def report_bad(bad: Mapping[int, UserError], on_bad_rows: OnBadRows, say: Any) -> None:
    """Refuse the first row that cannot be read, or tell which are skipped."""
    if not bad:
        return
    first = next(iter(bad.values()))
    if on_bad_rows == "error":
        more = [f"{some(len(bad), 'row')} cannot be read: {ranges(list(bad))[:200]}"] if len(bad) > 1 else []
        raise UserError(first.what, where=first.where, fix=first.fix, details=more)
    say(f"skipped  {some(len(bad), 'row')} that cannot be read")
    for error in list(bad.values())[:TOLD]:
        say(f"skipped  {error.line}")
    if len(bad) > TOLD:
        say(f"skipped  and {len(bad) - TOLD:,} more: rows {ranges(list(bad)[TOLD:])}")


def ranges(rows: Sequence[int]) -> str:
    """Numbers counted from 1, those that follow each other as one.

    >>> ranges([0, 1, 2, 6])
    '1-3, 7'
    """
    parts: list[list[int]] = []
    for row in rows:
        if parts and parts[-1][1] == row:
            parts[-1][1] = row + 1
        else:
            parts.append([row + 1, row + 1])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


@contextmanager
def room_for(files: bool) -> Iterator[Path | None]:
    """A folder for what is read from files, which may be more than memory holds; none for what is in memory already."""
    if not files:
        yield None
        return
    with scratch_folder() as folder:
        yield folder


def check_target(frame: Frame, preprocess: Preprocess) -> None:
    """A file without the target column cannot be judged."""
    lost = [name for name in (preprocess.target.names if preprocess.target else ()) if name not in frame.names]
    if lost:
        where = frame.sources[0].name if frame.sources else "data"
        fix = did_you_mean(lost[0], frame.names)
        raise UserError(f"there is no column {lost[0]!r} to compare with", where=where,
                        fix=fix if "did you mean" in fix else "use predict for new rows")  # fmt: skip


# ---------------------------------------------------------------- what people give


def given_rows(source: Any, preprocess: Preprocess, *, judged: bool = False) -> list[Any] | Frame:
    """What was given as paths, as a table, or as a list of rows. A single object by column is one row."""
    columns = preprocess.columns or ()
    rows = given(source)
    if is_files(rows):
        assert isinstance(rows, list)
        lone = columns[0] if len(columns) == 1 and not judged else None
        # Images and recordings that nobody has labelled yet: files, or a folder of them.
        inside = None if lone is None else lone.files_in(rows)
        return rows if inside is None or lone is None else frame_of({lone.name: inside})
    if isinstance(rows, np.ndarray):
        if rows.ndim == 2 and len(columns) == rows.shape[1] > 1:
            return frame_of({column.name: rows[:, at] for at, column in enumerate(columns)})
        rows = list(rows) if rows.ndim else []
    if isinstance(rows, Mapping):
        rows = by_row(rows)
    if not len(rows):
        raise UserError("there are no rows", where="rows", fix="give at least one")
    return rows


def given(source: Any) -> Any:
    """A list of paths, a table, an array, columns by name, or a list of rows."""
    owner, kind = type(source).__module__.partition(".")[0], type(source).__name__
    if isinstance(source, Path) or (isinstance(source, str) and names_path(source)):
        return [Path(source)]
    if isinstance(source, str | bytes):
        raise UserError(f"rows are given as {kind} {source[:30]!r}, and it is no file", where="rows",
                        fix="give a list of rows: [row]")  # fmt: skip
    if isinstance(source, Frame | np.ndarray | Mapping):
        return source
    if owner == "torch":
        return source.numpy(force=True)
    if owner in ("pandas", "polars", "pyarrow"):
        series = kind in ("Series", "ChunkedArray") or kind.endswith("Array")
        return source.tolist() if series and owner == "pandas" else list(source) if series else frame_of(source)
    if isinstance(source, Iterable):
        return list(source)
    raise UserError(f"rows are given as {kind}", where="rows", fix="give a list of rows, a table or a path")


def names_path(text: str) -> bool:
    """Whether a text is the name of something on disk."""
    try:
        return os.path.exists(text)
    except ValueError:
        return False


def is_files(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, Path) for row in rows)


def by_row(columns: Mapping[Any, Any]) -> list[Any] | Frame:
    """Columns by name as a table; an object whose values are no lists is one row."""
    if not any(is_column(cells) for cells in columns.values()):
        return [columns]
    plain = all(isinstance(cells, list | tuple) for cells in columns.values())
    if not plain or len({len(cells) for cells in columns.values()}) > 1:
        return frame_of(columns)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def is_column(cells: Any) -> bool:
    """Whether a value holds many cells."""
    if type(cells).__module__.partition(".")[0] in ("pandas", "polars", "pyarrow"):
        return True
    return isinstance(cells, Sequence | np.ndarray) and not isinstance(cells, str | bytes)


# ---------------------------------------------------------------- what people read


def objective_of(preprocess: Preprocess) -> Objective:
    kind = OBJECTIVES[preprocess.task]
    return kind(multi=preprocess.multi) if preprocess.task == "classify" else kind()  # type: ignore[call-arg]


def counts_in_words(counts: Counts, preprocess: Preprocess) -> list[str]:
    """What was cut, missing or unknown in new rows."""
    lines = []
    if counts.cut:
        lines.append(f"cut      {some(counts.cut, 'row')} at {preprocess.length} tokens")
    missing = [(name, count) for name, count in counts.missing.items() if count]
    if missing:
        said = ", ".join(f"{name} {count:,}" for name, count in missing[:10])
        lines.append(f"missing  cells without a value: {said}")
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

"""Predictions on new rows: files, tables, or rows of Python and JSON, all parsed by the same rules.

One answer per row, in order. A row that cannot be parsed is an error that names it, unless such rows are skipped: then
they have no answer, and are reported. Rows in memory are not written to disk.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.data.columns.cells import some
from anyformer.data.counts import ColumnCounts
from anyformer.data.examples import Examples
from anyformer.data.frame import Frame
from anyformer.data.given_rows import ON_BAD_ROWS, OnBadRows, given_rows, is_files, ranges, report_bad, room_for
from anyformer.data.new_rows import NewRows, parse_rows, parse_table, with_place
from anyformer.data.prepare_rows import examples_for
from anyformer.data.preprocess import Preprocess
from anyformer.data.settings import Data
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.log import Log, silence
from anyformer.tasks import Evaluator, find
from anyformer.tasks.prepare import frame_of_model, read_new_rows

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor

logger = logging.getLogger("anyformer")


@dataclass
class PredictedRows:
    """Answers to the valid rows, and errors of the others."""

    frame: Frame  # all input rows
    answers: Answers | None  # None if no row is valid
    rows: np.ndarray  # numbers of the answered rows
    cut: np.ndarray  # which of those had a truncated text
    bad: dict[int, UserError]  # the other rows with their errors
    counts: ColumnCounts

    def aligned(self, values: Sequence[Any]) -> list[Any]:
        """Values for all rows, None for those without an answer."""
        found: list[Any] = [None] * len(self.frame)
        for row, value in zip(self.rows.tolist(), values, strict=True):
            found[row] = value
        return found


def answer(predictor: Predictor, source: Any, *, batch_size: int = 32) -> Answers:
    """Answers to all rows of files, a table or a list; every row must be valid."""
    found = predict_rows(predictor, source, batch_size=batch_size)
    assert found.answers is not None and predictor.preprocess is not None
    warn_cut(found, predictor.preprocess)
    return found.answers


def predict_values(
    predictor: Predictor, source: Any, *, batch_size: int, on_bad_rows: OnBadRows = "error"
) -> list[Any]:
    """The result of `predict`: one readable answer per row, None for a skipped row."""
    assert predictor.preprocess is not None
    task = find(predictor.preprocess.task)
    own = task.predict(predictor, source, batch_size=batch_size, on_bad_rows=on_bad_rows)
    if own is not None:
        return own
    found = predict_rows(predictor, source, batch_size=batch_size, on_bad_rows=on_bad_rows)
    warn_cut(found, predictor.preprocess)
    return found.aligned([] if found.answers is None else task.predictions(found.answers))


def probabilities(
    predictor: Predictor, source: Any, *, batch_size: int, on_bad_rows: OnBadRows = "error"
) -> np.ndarray:
    """Probabilities (rows, classes), nan for a row that is skipped."""
    preprocess = predictor.preprocess
    assert preprocess is not None
    if not find(preprocess.task).gives_probabilities:
        raise UserError("this model gives no probabilities", fix="use predict")
    found = predict_rows(predictor, source, batch_size=batch_size, on_bad_rows=on_bad_rows)
    warn_cut(found, preprocess)
    share = np.full((len(found.frame), len(preprocess.labels or ())), np.nan, np.float32)
    if found.answers is not None:
        share[found.rows] = found.answers.probability
    return share


def warn_cut(found: PredictedRows, preprocess: Preprocess) -> None:
    """Log which texts were truncated."""
    if found.cut.any():
        rows = found.rows[found.cut]
        logger.warning(f"cut      {some(len(rows), 'row')} at {preprocess.length} tokens: rows {ranges(rows.tolist())}")


def predict_rows(
    predictor: Predictor, source: Any, *, batch_size: int = 32, settings: Data | None = None, log: Log | None = None,
    with_truth: bool = False, on_bad_rows: OnBadRows = "error",
) -> PredictedRows:  # fmt: skip
    """Answers to every row, with the rows' status. `with_truth` requires the true targets too."""
    if on_bad_rows not in ON_BAD_ROWS:
        raise UserError(f"{on_bad_rows!r} says nothing about bad rows", where="on_bad_rows",
                        fix=did_you_mean(str(on_bad_rows), ON_BAD_ROWS))  # fmt: skip
    preprocess = predictor.preprocess
    assert preprocess is not None
    rows = given_rows(source, preprocess, with_truth=with_truth)
    files = is_files(rows)
    with room_for(files) as cache:
        if files:
            assert cache is not None
            frame, notes = read_new_rows(rows, preprocess, (settings or Data()).replace(bad=on_bad_rows), cache)
            new = parse_table(frame, preprocess)
        elif isinstance(rows, Frame):
            frame, notes = frame_of_model(rows, preprocess)
            new = parse_table(frame, preprocess)
        else:
            new = parse_rows(rows, preprocess)
            frame, notes = new.frame, []
        if with_truth:
            check_target(frame, preprocess)
        examples = find(preprocess.task).examples_of(frame, preprocess, log or logger.warning)
        if examples is not None:
            return answer_examples(predictor, frame, examples, batch_size=batch_size)
        found = answer_rows(predictor, new, frame, cache, batch_size=batch_size, on_bad_rows=on_bad_rows)
        if log is not None:
            for line in (*notes, *counts_in_words(found.counts, preprocess)):
                log(line)
        for reason, count in frame.skipped.items():
            first = ", ".join(frame.skipped_at.get(reason, ()))
            (log or logger.warning)(f"skipped  {some(count, 'row')}: {reason}" + (f" ({first})" if first else ""))
        report_bad(
            {row: with_place(error, frame, row) for row, error in found.bad.items()}, "skip", log or logger.warning
        )
        return found


def answer_examples(predictor: Predictor, frame: Frame, examples: Examples, *, batch_size: int) -> PredictedRows:
    """Answers to examples that a task derives from a whole table, such as windows of a series, for evaluation."""
    answers = evaluator_for(predictor, batch_size=batch_size)(predictor.model, examples)
    count = len(answers.truth)
    return PredictedRows(frame, answers, np.arange(count), np.zeros(count, bool), {}, ColumnCounts(count))


def evaluator_for(predictor: Predictor, *, batch_size: int) -> Evaluator:
    """The evaluator of a trained model, with its training objective if known."""
    preprocess = predictor.preprocess
    assert preprocess is not None
    task = find(preprocess.task)
    objective = task.fit_objective(predictor.objective or task.objective_of(preprocess), predictor.spec)
    return Evaluator(objective, preprocess, predictor.tokenizer, batch_size=batch_size)


def answer_rows(
    predictor: Predictor, new: NewRows, frame: Frame, cache: Path | None = None, *, batch_size: int = 32,
    on_bad_rows: OnBadRows = "skip",
) -> PredictedRows:  # fmt: skip
    """Answers to parsed rows; arrays are in the folder `cache`, or in memory if None."""
    preprocess = predictor.preprocess
    assert preprocess is not None
    examples, counts = examples_for(new.frame, preprocess, predictor.tokenizer, cache, images=predictor.images)
    bad = dict(sorted((counts.unread | new.bad).items()))
    if on_bad_rows == "error":  # before the model does any work
        report_bad({row: with_place(error, frame, row) for row, error in bad.items()}, on_bad_rows, silence)
    for error in new.bad.values():  # its cell is empty in the frame; report it as bad, not as missing
        if counts.missing.get(error.where):
            counts.missing[error.where] -= 1
    good = np.array([row for row in range(len(frame)) if row not in bad], np.int64)
    cut = np.array(examples.arrays["cut"], bool)[good] if "cut" in examples.arrays else np.zeros(len(good), bool)
    if not len(good):
        return PredictedRows(frame, None, good, cut, bad, counts)
    examples.rows = good
    found = evaluator_for(predictor, batch_size=batch_size)(predictor.model, examples)
    found.extra.clear()
    return PredictedRows(frame, found, good, cut, bad, counts)


def encoder_inputs(predictor: Predictor, rows: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    """Encoder inputs and padding mask of some rows for a text-generating model; every row must be valid."""
    preprocess = predictor.preprocess
    assert preprocess is not None
    new = parse_rows(rows, preprocess)
    examples, counts = examples_for(new.frame, preprocess, predictor.tokenizer, None, images=predictor.images)
    bad = dict(sorted((counts.unread | new.bad).items()))
    report_bad({row: with_place(error, new.frame, row) for row, error in bad.items()}, "error", silence)
    batch = examples.batch(np.arange(len(rows))).to(predictor.device)
    return batch.inputs[0], batch.named["source_mask"]


def check_target(frame: Frame, preprocess: Preprocess) -> None:
    """Reject a file without the target column."""
    lost = [name for name in (preprocess.target.names if preprocess.target else ()) if name not in frame.names]
    if lost:
        where = frame.sources[0].name if frame.sources else "data"
        fix = did_you_mean(lost[0], frame.names)
        raise UserError(f"no column {lost[0]!r} to compare with", where=where,
                        fix=fix if "did you mean" in fix else "use predict for new rows")  # fmt: skip


def counts_in_words(counts: ColumnCounts, preprocess: Preprocess) -> list[str]:
    """Log lines on truncated, missing and unknown values in new rows."""
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

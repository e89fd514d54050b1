"""The rows behind examples as plain values, for baselines and prediction files: no scaling, no tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.data.columns.cells import texts
from anyformer.data.datasets.detection import DetectionExamples
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.datasets.series import SeriesExamples, StepRows
from anyformer.data.datasets.windows import Windows
from anyformer.data.examples import Examples
from anyformer.evaluation.average_precision import true_objects
from anyformer.evaluation.baseline_rows import Rows, Series

MOST_TOKENS = 4 * 10**6


def raw_rows(examples: Examples) -> Rows:
    """What a simple learner would be given for the same rows."""
    if isinstance(examples, Windows):
        return Rows(tokens=np.asarray(examples.ids), texts=whole_text(examples))
    if isinstance(examples, SeriesExamples):
        return Rows(series=series_of(examples, np.arange(len(examples))))
    if isinstance(examples, StepRows):
        return Rows(series=series_of(examples.windows, examples.rows))
    if isinstance(examples, DetectionExamples):
        pictures = [examples.picture(row) for row in range(len(examples))]
        return Rows(sizes=np.array([(picture.wide, picture.high) for picture in pictures]).reshape(-1, 2))
    assert isinstance(examples, RowExamples)
    preprocess, frame = examples.preprocess, examples.frame.take(examples.rows)
    found: dict[str, Any] = {}
    numbers: list[np.ndarray] = []
    for modality in examples.modalities:
        found |= modality.features(examples, frame)
        numbers += [found.pop("numbers")] if "numbers" in found else []
    if preprocess.task == "translate":
        return Rows(sources=found["texts"])
    if numbers:
        found["numbers"] = np.concatenate(numbers, 1).astype(np.float64)
    return Rows(**found)


def series_of(examples: SeriesExamples, rows: np.ndarray) -> Series:
    """Some windows of a series, in the units of the file."""
    values = np.asarray(examples.values)
    raw = examples.target.undo(values if values.shape[1] > 1 else values[:, 0]).reshape(values.shape)
    return Series(raw, examples.first + np.asarray(rows), examples.length, examples.target.horizon)


def whole_text(examples: Windows) -> list[str] | None:
    """The end of a text, decoded again: a compressor looks back no further."""
    if examples.tokenizer is None:
        return None
    return [examples.tokenizer.decode(np.asarray(examples.ids[-MOST_TOKENS:]).tolist())]


def truth_of(examples: Examples) -> Any:
    """The targets of the rows, in the form that Answers hold them."""
    if isinstance(examples, SeriesExamples):
        known = np.asarray(examples.values[: examples.stop])
        return examples.target.undo(known if known.shape[1] > 1 else known[:, 0])
    if isinstance(examples, DetectionExamples):
        pictures = [examples.picture(row) for row in range(len(examples))]
        return [true_objects(picture.boxes, picture.kinds, picture.crowd) for picture in pictures]
    if not isinstance(examples, RowExamples):
        return []
    preprocess = examples.preprocess
    names = preprocess.target.names if preprocess.target else ()
    if preprocess.task == "tag":
        return examples.frame.take(examples.rows).column(names[0]).to_pylist()
    if preprocess.task == "translate":
        return texts(examples.frame.take(examples.rows).column(names[0]))
    values = np.asarray(examples.arrays["targets"][examples.rows])
    return preprocess.target.undo(values) if preprocess.task == "regress" else values  # type: ignore[union-attr]

"""The rows behind examples as plain values, for baselines: no scaling, no tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.data.audio.column import summaries
from anyformer.data.columns.cells import texts
from anyformer.data.columns.fitted import Category, Date, Image, Number, Sentence, Sound, Text
from anyformer.data.columns.kinds import days, numbers
from anyformer.data.datasets.rows import RowExamples
from anyformer.evaluation.baseline_rows import Rows


def raw_rows(examples: RowExamples) -> Rows:
    """What a simple learner is given for the same rows."""
    preprocess, frame = examples.preprocess, examples.frame.take(examples.rows)
    found: dict[str, Any] = {}
    written = [texts(frame.column(column.name)) for column in preprocess.of(Text)]
    if written:
        found["texts"] = [" ".join(parts) for parts in zip(*written, strict=True)]
    for sentence in preprocess.of(Sentence):
        found["words"] = frame.column(sentence.name).to_pylist()
    columns = [numbers(frame.column(column.name)) for column in preprocess.of(Number)]
    for date in preprocess.of(Date):
        moments = days(frame.column(date.name))
        seconds = moments.astype("datetime64[s]").astype(np.float64)
        columns.append(np.where(np.isnat(moments), np.nan, seconds))
    for sound in preprocess.of(Sound):
        columns += list(summaries(examples.arrays, examples.rows, sound.rate).T)
    if columns:
        found["numbers"] = np.stack(columns, 1).astype(np.float64)
    if preprocess.of(Category):
        found["categories"] = np.asarray(examples.arrays["categories"][examples.rows])
    if preprocess.of(Image) and "pixels" in examples.arrays:
        pixels = examples.arrays["pixels"][examples.rows]
        found["images"] = np.moveaxis(np.asarray(pixels), 1, -1)
    return Rows(**found)

"""Rows answered by models that were trained here on columns: through what was fitted in training, all in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.data.new_rows import parse_rows
from anyformer.data.series_target import Future
from anyformer.data.targets import Tags
from anyformer.errors import UserError
from anyformer.inference.predictor import Predictor

TOGETHER = 32  # rows of one pass
Answer = Any  # what JSON can say, or a UserError of this row alone


def columns_answered(rows: list[Any], predictor: Predictor) -> list[Answer]:
    """Rows of cells through what was fitted in training."""
    from anyformer.inference.predict import answer_rows, spoken

    kept = predictor.preprocess
    assert kept is not None
    new = parse_rows(rows, kept)
    found = answer_rows(predictor, new, new.frame, batch=TOGETHER)
    answers: list[Answer] = found.aligned([] if found.answers is None else spoken(found.answers))
    if isinstance(kept.target, Tags):
        words = new.frame.column(kept.texts[0].name).to_pylist()
        for at in found.rows.tolist():
            pairs = zip(words[at], answers[at]["tags"], strict=True)
            answers[at]["tags"] = [{"word": word, "tag": tag} for word, tag in pairs]
    for at in found.rows[found.cut].tolist():  # a server never cuts: what was not read cannot be answered for
        answers[at] = UserError(f"the text is longer than the {kept.length} tokens the model takes", fix="shorten it")
    for at, error in found.bad.items():
        answers[at] = error
    return answers


def foreseen(rows: Sequence[np.ndarray], predictor: Predictor) -> list[Answer]:
    """The steps to come of each history (T, V) of scaled values."""
    from anyformer.inference.forecasting import ahead, by_channel

    assert predictor.preprocess is not None and isinstance(predictor.preprocess.target, Future)
    names = predictor.preprocess.target.names
    return [{"forecast": by_channel(steps, names)} for steps in ahead(predictor, rows)]


def detected(rows: list[bytes], predictor: Predictor) -> list[Answer]:
    """The objects of each image, the surest first."""
    from anyformer.inference.detecting import objects_in

    found, bad = objects_in(predictor, rows, batch=TOGETHER)
    return [bad.get(at, {"objects": objects}) for at, objects in enumerate(found)]

"""Rows answered by models that were trained here on columns: through what was fitted in training."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.columns import Number, Sentence, Sound
from anyformer.data.detection import Picture
from anyformer.data.frame import Frame, Source
from anyformer.data.series_target import Future
from anyformer.errors import UserError
from anyformer.predictor import Predictor
from anyformer.serving.cells import frame_table, plain

TOGETHER = 32  # rows of one pass
MOST_STEPS = 65_536  # of a series to look back on
Answer = Any  # what JSON can say, or a UserError of this row alone


def columns_answered(rows: list[Any], predictor: Predictor) -> list[Answer]:
    """Rows of cells through what was fitted in training."""
    from anyformer.training.answer import asked, spoken

    kept = predictor.preprocess
    assert kept is not None
    with tempfile.TemporaryDirectory(prefix="anyformer-") as folder:
        rows = [written_down(row, at, kept.of(Sound), Path(folder)) for at, row in enumerate(rows)]
        frame = Frame(frame_table(rows, kept), (Source("rows", rows=len(rows)),))
        found = asked(predictor, frame, batch=TOGETHER)
    answers: list[Answer] = list(spoken(found.answers))
    if kept.task == "tag":
        (sentence,) = kept.of(Sentence)
        for at, (row, answer) in enumerate(zip(rows, answers, strict=True)):
            pairs = zip(row[sentence.name], answer["tags"], strict=False)
            answers[at] = {"tags": [{"word": word, "tag": tag} for word, tag in pairs]}
    blind = found.unseen if len(kept.columns or ()) == 1 else np.zeros(len(rows), bool)
    for at in np.flatnonzero(found.cut | blind).tolist():
        if found.cut[at]:  # what was not read cannot be answered for
            answers[at] = UserError(f"the text is longer than the {kept.length} tokens the model takes",
                                    fix="shorten it")  # fmt: skip
        else:
            answers[at] = UserError("the image or recording cannot be read", fix="send another")
    return answers


def written_down(row: dict[str, Any], at: int, sounds: Sequence[Sound], folder: Path) -> dict[str, Any]:
    """The row with its recordings as files, which is how they are read."""
    for column in sounds:
        if row[column.name] is not None:
            data, suffix = row[column.name]
            path = folder / f"{at}{suffix}"
            path.write_bytes(data)
            row = row | {column.name: str(path)}
    return row


def history(row: Any, predictor: Predictor) -> np.ndarray:
    """A series to look back on (T, V), scaled."""
    from anyformer.data.series_prepare import scaled

    kept = predictor.preprocess
    assert kept is not None
    names = [column.name for column in kept.of(Number)]
    if len(names) == 1 and isinstance(row, list):
        row = {names[0]: row}
    if not isinstance(row, Mapping) or set(row) != set(names):
        raise UserError(
            f"a row is {plain(row)}", fix=f"send a list of numbers, oldest first, for each of {', '.join(names)}"[:200]
        )
    channels = [row[name] for name in names]
    for name, values in zip(names, channels, strict=True):
        real = isinstance(values, list) and all(
            one is None or (isinstance(one, int | float) and not isinstance(one, bool)) for one in values
        )
        if not real or not 1 <= len(values) <= MOST_STEPS or len(values) != len(channels[0]):
            raise UserError("is no list of numbers, as long as the others", where=name,
                            fix=f"send up to {MOST_STEPS:,} numbers, oldest first, null for none")  # fmt: skip
    try:
        raw = np.array([[np.nan if one is None else float(one) for one in values] for values in channels]).T
    except OverflowError:
        raise UserError("a number is too large", fix="send numbers that fit 64 bits") from None
    return scaled(np.where(np.isfinite(raw), raw, np.nan), kept)


def foreseen(rows: list[np.ndarray], predictor: Predictor) -> list[Answer]:
    """The steps to come of each series."""
    from anyformer.training.forecasting import ahead

    assert predictor.preprocess is not None and isinstance(predictor.preprocess.target, Future)
    names = predictor.preprocess.target.names
    return [{"forecast": {name: steps[:, at].tolist() for at, name in enumerate(names)}}
            for steps in ahead(predictor, rows)]  # fmt: skip


def detected(rows: list[bytes], predictor: Predictor) -> list[Answer]:
    """The objects of each image, the surest first."""
    from anyformer.data.picture_decoding import looked_at
    from anyformer.training.detecting import detected as objects_in
    from anyformer.training.detecting import object_rows

    assert predictor.preprocess is not None
    with tempfile.TemporaryDirectory(prefix="anyformer-") as folder:
        pictures = []
        for at, data in enumerate(rows):
            path = Path(folder) / f"{at}.image"
            path.write_bytes(data)
            wide, high, _ = looked_at(data, Path())
            pictures.append(Picture(at, str(at), path, wide, high))
        found = objects_in(predictor, pictures, Path(folder) / "arrays", batch=TOGETHER)
    answers: list[Answer] = [{"objects": []} for _ in rows]
    for row in object_rows(pictures, found, predictor.preprocess.labels or ()):
        answers[int(row.pop("image"))]["objects"].append(row)
    return answers

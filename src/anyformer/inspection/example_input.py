"""An example input, if none was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyformer.inspection.given import TEXT, by_task, is_pair_of_towers

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor


def example_input(predictor: Predictor) -> Any:
    """A sentence, an image, a tone, or example values of the columns; None if the task makes its own example."""
    from anyformer.data.files.example_files import picture

    preprocess = predictor.preprocess
    if preprocess is not None and by_task(predictor, None) is not None:
        return None
    columns = () if preprocess is None else preprocess.columns or ()
    if is_pair_of_towers(predictor):
        return TEXT
    if predictor.images is not None and len(columns) <= 1:
        return picture()
    if not columns or (len(columns) == 1 and columns[0].is_text):
        return TEXT
    return {column.name: column.worth_looking_at() for column in columns}


def input_kind(predictor: Predictor) -> str | None:
    """How an input is entered: as text, image, or JSON (table); None for audio."""
    preprocess = predictor.preprocess
    if preprocess is not None and by_task(predictor, None) is not None:
        return "table"
    columns = () if preprocess is None else preprocess.columns or ()
    if not all(column.can_be_typed for column in columns):
        return None
    if is_pair_of_towers(predictor):
        return "text"
    if predictor.images is not None and len(columns) <= 1:
        return "image"
    return "text" if not columns or (len(columns) == 1 and columns[0].is_text) else "table"

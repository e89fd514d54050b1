"""Reject explicit settings that would have no effect on this data, before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.data.answer_spans import AnswerSpan
from anyformer.data.prepared import Prepared
from anyformer.data.settings import Data
from anyformer.data.targets import TaskAnswer
from anyformer.errors import UserError
from anyformer.slots import Network
from anyformer.spec import Spec
from anyformer.tasks import find
from anyformer.training.settings import Training
from anyformer.training.setup.request import Request, replace_paths


def refuse_idle(request: Request, prepared: Prepared) -> None:
    """Reject settings of columns, images, audio, text or series if the data has none of them."""
    if request.lenient:
        return
    parts, task = prepared.preprocess.parts, find(prepared.task)
    read = {modality.settings for modality in prepared.preprocess.modalities}
    there = {
        "data.images": "data.images" in read, "data.audio": "data.audio" in read,
        "data.series": "series" in parts, "data.tokenizer": prepared.tokenizer is not None,
        "data.questions": isinstance(prepared.preprocess.target, AnswerSpan),
        "data.columns": "data.columns" in read or task.scales_numbers,
        "data.mixture": isinstance(prepared.preprocess.target, TaskAnswer),
        "training.class_weights": task.weighs_classes, "training.patience": prepared.valid is not None,
        "training.metric": prepared.valid is not None, "training.threshold": task.has_threshold(prepared.preprocess),
    }  # fmt: skip
    wanting = {
        "data.images": "the data has no images", "data.audio": "the data has no sounds",
        "data.series": "only --task forecast cuts a series", "data.tokenizer": "the data has no text",
        "data.questions": "only --task qa reads questions",
        "data.columns": "the data has no columns of numbers or categories",
        "data.mixture": "no column named task says what is to be done with each row",
        "training.class_weights": "only classes have weights", "training.patience": "no rows validate",
        "training.metric": "no rows validate",
        "training.threshold": "only two classes, or labels that may come together, have a threshold",
    }  # fmt: skip
    for path, value in request.settings.items():
        for section, used in there.items():
            if not used and f"{path}.".startswith(f"{section}.") and is_changed(path, value):
                raise UserError(f"it would change nothing: {wanting[section]}", where=path, fix="leave it out")


def is_changed(path: str, value: Any) -> bool:
    """Whether a setting differs from its default; a run's own file holds all settings."""
    section, _, rest = path.partition(".")
    plain: Spec = {"data": Data(), "training": Training()}[section]
    return bool(replace_paths(plain, {rest: value}, section) != plain)


def refuse_overruled(request: Request, asked: Network, made: Network, changes: Mapping[str, Any]) -> None:
    """Reject network settings that the data determines: `made` is the network adapted to the data, `asked` the same
    with
    the settings on top. Settings from a file are tolerated: it may come from another run."""
    if asked == made:
        return
    for path, value in changes.items():
        if f"model.{path}" not in request.places and replace_paths(made, {path: value}, "model") != made:
            raise UserError("it would change nothing: the data decides it", where=f"model.{path}", fix="leave it out")

"""Two stages in one run: pretraining on the texts of the training rows, labelled or not, then training on the labels.

`RUN/pretrain` is a complete run on the texts; the run itself starts from its best weights. Both are created before the
first step, so that each can be resumed without the data files.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from anyformer.checkpoints.folder import Opened
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.examples import Examples
from anyformer.data.prepared import StartModelConstraints
from anyformer.data.reopen import reopen
from anyformer.data.settings import Data
from anyformer.errors import UserError
from anyformer.evaluation.baseline_rows import raw_rows
from anyformer.inference.predictor import Predictor
from anyformer.safe_files import scratch_folder
from anyformer.tasks import Task, find
from anyformer.tasks.prepare import prepare, unlabelled_texts
from anyformer.training.run.folder import RunFolder
from anyformer.training.setup.request import Request

PRETRAIN_FOLDER = "pretrain"
SHARE = 0.5  # fraction of the time budget for the first stage
# Settings that apply to both stages, besides the minutes: length and machine settings.
COMMON = (
    "steps", "epochs", "seed", "precision", "compile", "cuda_graph", "deterministic", "save_every", "eval_every",
    "keep", "workers", "threads",
)  # fmt: skip
BODY = ("stack", "embed", "init")  # settings of the network that are not its head's


def pretraining_task(name: str) -> Task:
    """The task of the first stage; it must need text only."""
    task = find(name)
    if task.has_target or task.origin != "text":
        raise UserError(f"a {task.title} does not learn from text alone", where="--pretrain", fix="use masked or lm")
    return task


def first_stage(request: Request, given: StartModelConstraints, settings: Data, out: Path) -> Request:
    """The request for the pretraining run. `settings` are the data settings, `given` the start model's constraints."""
    assert request.pretrain is not None
    pretraining_task(request.pretrain)
    chosen: dict[str, Any] = {f"training.{name}": value for name, value in request.section("training").items()
                              if name in COMMON}  # fmt: skip
    minutes = request.section("training").get("minutes")
    if minutes is not None:
        chosen["training.minutes"] = SHARE * minutes
    chosen |= {f"model.{path}": value for path, value in request.section("model").items() if path.startswith(BODY)}
    chosen |= {f"data.{path}": value for path, value in request.section("data").items() if path.startswith("tokenizer")}
    texts = texts_to_learn(request, given, settings)
    return replace(
        request, source=texts, task=request.pretrain, pretrain=None, out=out,
        settings=chosen | {"data.split.test": 0.0}, places={},
    )  # fmt: skip


def texts_to_learn(request: Request, given: StartModelConstraints, settings: Data) -> list[str]:
    """The texts of the training rows and of unlabelled rows, without validation and test rows."""
    with scratch_folder() as scratch:
        rows = prepare(request.source, task=request.task, settings=settings, cache=scratch / "rows", given=given,
                       seed=int(request.section("training").get("seed", 0) or 0))  # fmt: skip
        if not find(rows.task).has_target:
            raise UserError(f"a {find(rows.task).title} has no labels to learn afterwards", where="--pretrain",
                            fix=f"say --task {request.pretrain} in its place")  # fmt: skip
        labelled = texts_of(rows.train)
        if not any(labelled):
            raise UserError("the rows hold no text to learn from", where="--pretrain", fix="leave it out")
        held_out = {text for side in (rows.valid, rows.test) if side is not None for text in texts_of(side)}
        others = unlabelled_texts(request.source, find(rows.task), settings, scratch / "others")
    return labelled + [text for text in others if text not in held_out]


def texts_of(examples: Examples) -> list[str]:
    """The text of each row; several text columns are joined."""
    found = raw_rows(examples).texts if isinstance(examples, RowExamples) else None
    return [] if found is None else list(found)


def second_stage(request: Request, stage: RunFolder, final: Path) -> tuple[Request, Predictor]:
    """The request for the run itself, and its start model, which is not trained yet.

    `final` is the folder that `stage` will be moved to.
    """
    spec, prepared = stage.config().model, reopen(stage.cache)
    assert prepared is not None
    start = Predictor(Opened(spec, spec.build(device="meta")), tokenizer=prepared.tokenizer)
    return replace(request, start=final, preset=None, pretrain=None), start

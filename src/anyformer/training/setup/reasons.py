"""Log lines that explain a run's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyformer.data.columns.kinds import kinds
from anyformer.data.prepared import Prepared
from anyformer.data.sizes import Sizes
from anyformer.evaluation.sentences import metric_name
from anyformer.log import Log
from anyformer.objectives import Objective
from anyformer.spec import fields_of
from anyformer.tasks import Task
from anyformer.training.settings import Training
from anyformer.training.setup.request import Request


def report_preset(request: Request, name: str, task: Task, sizes: Sizes, log: Log, *, gpu: bool, start: bool) -> None:
    """Log why this preset was chosen, if none was given."""
    if request.preset is None and not start:
        rows = "" if sizes.rows is None else f" with {sizes.rows:,} training rows"
        log(f"preset   {name}: the default for {describe_parts(sizes.parts)}{rows} on a {'GPU' if gpu else 'CPU'}; "
            "--preset names another")  # fmt: skip


def report_defaults(
    request: Request, training: Training, objective: Objective, task: Task, sizes: Sizes, log: Log, *, start: bool
) -> None:  # fmt: skip
    """Log the default length, patience and regularisation."""
    asked = request.section("training")
    said = [*length_words(training, task, sizes, asked, start=start), *decay_words(training, asked)]
    of = "a trained model" if start else describe_parts(sizes.parts)
    lines = [f"{', '.join(said)}: usual for {of}"] if said else []
    smoothing = getattr(objective, "label_smoothing", 0.0) if "label_smoothing" in fields_of(type(objective)) else 0.0
    if smoothing and "label_smoothing" not in request.section("objective"):
        lines.append(f"label smoothing {smoothing:g}: such rows are learned by heart before they are understood")
    if lines:
        log(f"defaults {'; '.join(lines)}")


def report_choice(training: Training, task: Task, data: Prepared, log: Log) -> None:
    """Log the metric by which checkpoints are selected, if it is not the task's main metric."""
    beside = task.metrics_beside(data.preprocess)
    if not beside or training.metric is not None or data.valid is None:
        return
    main = task.selection_metric(multi=data.preprocess.multi, labels=data.preprocess.labels or ())
    why = f"nearly all training rows are of one class, which makes always naming it hard to beat by {metric_name(main)}"
    log(f"choose   checkpoints by {metric_name(beside[0])}: {why}; training.metric={main} changes it")


def length_words(
    training: Training, task: Task, sizes: Sizes, asked: Mapping[str, Any], *, start: bool
) -> list[str]:  # fmt: skip
    """The default maximal epochs and patience, as words."""
    has_length = asked.get("steps") is not None or asked.get("epochs") is not None
    said = [] if has_length else [f"at most {task.habit(sizes, start=start).epochs} passes"]
    if training.patience is not None and "patience" not in asked:
        said.append(f"stop after {training.patience:g} without anything better")
    return said


def decay_words(training: Training, asked: Mapping[str, Any]) -> list[str]:
    """The default weight decay as words, for an optimizer that has one."""
    if "weight_decay" not in fields_of(type(training.optimizer)) or "optimizer.weight_decay" in asked:
        return []
    return [f"weight decay {training.optimizer.weight_decay:g}"]  # type: ignore[attr-defined]


def describe_parts(parts: list[str]) -> str:
    """The kinds of input of a row, in words.

    >>> describe_parts(["text", "table"])
    'text beside tables'
    """
    plural = {kind.modality.name: kind.modality.plural for kind in kinds()}
    return " beside ".join(plural.get(part) or part for part in parts) or "such data"

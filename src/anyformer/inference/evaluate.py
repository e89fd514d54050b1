"""Evaluating a run or a model folder on files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.examples import Examples
from anyformer.data.reopen import reopen
from anyformer.data.settings import Data
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.inference.opening import load
from anyformer.inference.predict import evaluator_for, predict_rows
from anyformer.inference.predictor import Predictor
from anyformer.log import Log
from anyformer.tasks import Task, find
from anyformer.training.run.folder import CONFIG_FILE, RunFolder


def evaluate_run(
    folder: Path, files: list[Path], *, device: str, batch_size: int, log: Log,
    threshold: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Metrics of a model on labelled files, or on the run's own test (else validation) rows."""
    predictor = load(folder, device=device)
    predictor = predictor if threshold is None else predictor.with_threshold(threshold)
    preprocess = predictor.preprocess
    if preprocess is None:
        raise UserError("the folder does not say how its data was prepared", where=str(folder), fix="give a run")
    task, evaluator = find(preprocess.task), evaluator_for(predictor, batch_size=batch_size)
    if not files:
        name, side = own_rows(folder)
        answers = evaluator(predictor.model, side, most=task.max_eval_rows)
        counted = {"split": name, "rows": min(len(side), task.max_eval_rows or len(side))}
        return counted | metrics_with_interval(task, answers, metric_of(folder))
    settings, metric = settings_of(folder), metric_of(folder)
    return evaluate_files(predictor, files, settings=settings, batch_size=batch_size, log=log, metric=metric)


def evaluate_files(
    predictor: Predictor, files: list[Path], *, settings: Data, batch_size: int, log: Log,
    metric: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Metrics of a model on labelled files."""
    assert predictor.preprocess is not None
    task, evaluator = find(predictor.preprocess.task), evaluator_for(predictor, batch_size=batch_size)
    answers = task.evaluate_files(evaluator, predictor, files, log)
    if answers is not None:
        counted = {} if answers.truth is None else {"rows": len(answers.truth)}
        return counted | metrics_with_interval(task, answers, metric)
    found = predict_rows(predictor, files, batch_size=batch_size, log=log, settings=settings, with_truth=True,
                  on_bad_rows="skip").answers  # fmt: skip
    if found is None:
        raise UserError("no row can be read", where=files[0].name, fix="give other files")
    known = task.has_truth(found)
    if not known.any():
        raise no_answer(found, predictor, files[0].name)
    if not known.all():
        lost = int((~known).sum())
        log(f"left out {lost:,} row{'s' * (lost > 1)} without an answer that training knows")
    return {"rows": int(known.sum())} | metrics_with_interval(task, only(found, known), metric)


def metrics_with_interval(task: Task, answers: Answers, metric: str | None) -> dict[str, Any]:
    """All metrics, and the confidence interval of `metric`, or of the main one, if known."""
    found, interval = task.all_metrics(answers), task.find_interval(answers, metric)
    if interval is None:
        return dict(found)
    return found | {"interval": {"metric": metric or next(iter(found)), "low": interval.low, "high": interval.high}}


def metric_of(folder: Path) -> str | None:
    """A run's configured selection metric, if any."""
    return RunFolder(folder).config().training.metric if (folder / CONFIG_FILE).is_file() else None


def no_answer(found: Answers, predictor: Predictor, where: str) -> UserError:
    """The error if no row can be evaluated, with the first target value of the file."""
    target = predictor.preprocess.target if predictor.preprocess else None
    cell = found.examples.cells(0).get(target.names[0]) if target else None
    if cell is None or cell == "" or predictor.labels is None:
        return UserError("no row has a known answer", where=where, fix="fill in the target column")
    fix = did_you_mean(str(cell), found.labels or ())
    return UserError(f"no row has an answer that training had; the first is {str(cell)[:40]!r}", where=where, fix=fix)


def only(found: Answers, rows: np.ndarray) -> Answers:
    """The answers of a subset of rows."""
    if rows.all():
        return found
    names = ("truth", "predicted", "probability", "logits", "losses", "groups")
    parts = {name: np.asarray(value)[rows] for name in names
             if (value := getattr(found, name)) is not None}  # fmt: skip
    return replace(found, **parts)


def settings_of(folder: Path) -> Data:
    """The data settings of a run, to read similar files; defaults for a model folder."""
    if not (folder / CONFIG_FILE).is_file():
        return Data()
    config = RunFolder(folder).config()
    # For tagged words the target is the file's column with the tags.
    target = config.data.target if find(config.task).origin == "sentences" else None
    return Data(format=config.data.format, target=target)


def own_rows(folder: Path) -> tuple[str, Examples]:
    """A run's held-out rows."""
    opened = reopen(RunFolder.open(folder).cache)
    if opened is None:
        raise UserError("the run's own data is not there", where=str(folder), fix="give a file to evaluate")
    if opened.test is not None:
        return "test", opened.test
    if opened.valid is None:
        raise UserError("the run kept no rows aside", where=str(folder), fix="give a file to evaluate")
    return "valid", opened.valid

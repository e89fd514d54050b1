"""Judging a run or a model folder on files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.examples import Examples
from anyformer.data.prepared import Given
from anyformer.data.settings import Data
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.inference.judge import Judge
from anyformer.inference.predict import asked, objective_of
from anyformer.inference.predictor import Predictor, load
from anyformer.safe_write import scratch_folder
from anyformer.training.best import scored


def evaluate_run(
    folder: Path, files: list[Path], *, device: str, batch: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Metrics of a model on files with known answers, or on the run's own test (else validation) rows."""
    predictor = load(folder, device=device)
    preprocess = predictor.preprocess
    if preprocess is None:
        raise UserError("the folder does not say how its data was prepared", where=str(folder), fix="give a run")
    if not files:
        name, side = own_rows(folder)
        judge = Judge(objective_of(preprocess), preprocess, predictor.tokenizer, batch=batch)
        return {"split": name, "rows": len(side)} | scored(judge(predictor.model, side))
    if preprocess.task == "lm":
        return of_text(predictor, files, batch, say)
    if preprocess.task == "detect":
        from anyformer.inference.detecting import judged_file

        if len(files) > 1:
            raise UserError("objects are judged in one file at a time", where=files[1].name, fix="leave it out")
        judge = Judge(objective_of(preprocess), preprocess, predictor.tokenizer, batch=batch)
        answers = judged_file(predictor, files[0], judge)
        return {"rows": len(answers.truth)} | scored(answers)
    found = asked(predictor, files, batch=batch, say=say, settings=settings_of(folder), judged=True,
                  on_bad_rows="skip").answers  # fmt: skip
    if found is None:
        raise UserError("no row can be read", where=files[0].name, fix="give other files")
    known = known_rows(found)
    if not known.any():
        raise no_answer(found, predictor, files[0].name)
    if not known.all():
        lost = int((~known).sum())
        say(f"left out {lost:,} row{'s' * (lost > 1)} without an answer that training knows")
    return {"rows": int(known.sum())} | scored(only(found, known))


def no_answer(found: Answers, predictor: Predictor, where: str) -> UserError:
    """No row can be judged: the first answer in the file beside those that training had."""
    target = predictor.preprocess.target if predictor.preprocess else None
    cell = found.examples.cells(0).get(target.names[0]) if target else None
    if cell is None or cell == "" or found.task != "classify":
        return UserError("no row has a known answer", where=where, fix="fill in the target column")
    fix = did_you_mean(str(cell), found.labels or ())
    return UserError(f"no row has an answer that training had; the first is {str(cell)[:40]!r}", where=where, fix=fix)


def known_rows(found: Answers) -> np.ndarray:
    """Which rows have a true answer: a class that training had, a number that is one."""
    if found.task == "classify" and not found.multi:
        return np.asarray(found.truth) >= 0
    if found.task == "regress":
        truth = np.asarray(found.truth)
        return np.isfinite(truth).any(axis=1) if truth.ndim > 1 else np.isfinite(truth)
    return np.ones(len(found.truth), dtype=bool)


def only(found: Answers, rows: np.ndarray) -> Answers:
    """The answers of some rows."""
    if rows.all():
        return found
    parts = {name: np.asarray(value)[rows] for name in ("truth", "predicted", "probability", "losses")
             if (value := getattr(found, name)) is not None}  # fmt: skip
    return replace(found, **parts)


def settings_of(folder: Path) -> Data:
    """How a run's files were read, for files like them; what a model folder does not say is looked for."""
    from anyformer.training.run.folder import CONFIG_FILE, RunFolder

    if not (folder / CONFIG_FILE).is_file():
        return Data()
    config = RunFolder(folder).config()
    # Of tagged words the target names the column of the file that the tags stand in.
    target = config.data.target if config.task == "tag" else None
    return Data(format=config.data.format, target=target)


def own_rows(folder: Path) -> tuple[str, Examples]:
    """The rows a run kept aside."""
    from anyformer.data.reopen import reopen
    from anyformer.training.run.folder import RunFolder

    opened = reopen(RunFolder.open(folder).cache)
    if opened is None:
        raise UserError("the run's own data is not there", where=str(folder), fix="give a file to judge")
    if opened.test is not None:
        return "test", opened.test
    if opened.valid is None:
        raise UserError("the run kept no rows aside", where=str(folder), fix="give a file to judge")
    return "valid", opened.valid


def of_text(predictor: Predictor, files: list[Path], batch: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Perplexity and bits a byte of running text, all of it."""
    from anyformer.data.datasets.text import prepare_text
    from anyformer.data.gather import origin_of
    from anyformer.data.prepare import prepare
    from anyformer.data.settings import Split, TokenizerSettings

    preprocess = predictor.preprocess
    assert preprocess is not None
    settings = Data(split=Split(valid=0.0, test=0.0), tokenizer=TokenizerSettings(max_length=preprocess.length))
    with scratch_folder() as cache:
        given = Given(tokenizer=predictor.tokenizer, length=preprocess.length)
        if origin_of(files, None) == "fasta":
            opened = prepare(files, task="lm", settings=settings, cache=cache, given=given, say=say)
        else:
            opened = prepare_text(files, settings, seed=0, cache=cache, given=given, say=say)
        judge = Judge(objective_of(preprocess), preprocess, predictor.tokenizer, batch=batch)
        return scored(judge(predictor.model, opened.train))

"""Judging a run or a model folder on files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyformer.data.examples import Examples
from anyformer.data.prepared import Given
from anyformer.data.settings import Data
from anyformer.errors import UserError
from anyformer.predictor import Predictor, load
from anyformer.training.answer import answer, objective_of
from anyformer.training.judge import Judge
from anyformer.training.session import scored


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
    found = answer(predictor, files, batch=batch, say=say)
    if found.truth is None or not len(found.truth):
        raise UserError("no row has a known answer", where=files[0].name, fix="give a file with the target column")
    check_target(predictor, found)
    return {"rows": len(found.truth)} | scored(found)


def check_target(predictor: Predictor, found: Any) -> None:
    """A file without the target column cannot be judged."""
    target = predictor.preprocess.target if predictor.preprocess else None
    lost = [name for name in (target.names if target else ()) if name not in found.examples.frame.names]
    if lost:
        raise UserError(f"there is no column {lost[0]!r} to compare with", where="data", fix="use predict for new rows")


def own_rows(folder: Path) -> tuple[str, Examples]:
    """The rows a run kept aside."""
    from anyformer.data.reopen import reopen
    from anyformer.training.run import RunFolder

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
    import tempfile

    from anyformer.data.settings import Split, Words
    from anyformer.data.text import prepare_text

    preprocess = predictor.preprocess
    assert preprocess is not None
    settings = Data(split=Split(valid=0.0, test=0.0), words=Words(length=preprocess.length))
    with tempfile.TemporaryDirectory(prefix="anyformer-") as cache:
        given = Given(tokenizer=predictor.tokenizer, length=preprocess.length)
        opened = prepare_text(files, settings, seed=0, cache=Path(cache), given=given, say=say)
        judge = Judge(objective_of(preprocess), preprocess, predictor.tokenizer, batch=batch)
        return scored(judge(predictor.model, opened.train))

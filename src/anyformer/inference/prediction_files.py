"""Prediction files: the input rows with the model's columns added."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyformer.data.frame import Frame
from anyformer.data.given_rows import TOLD, OnBadRows
from anyformer.data.preprocess import Preprocess
from anyformer.errors import UserError, did_you_mean
from anyformer.inference.evaluate import settings_of
from anyformer.inference.opening import load
from anyformer.inference.predict import PredictedRows, predict_rows
from anyformer.log import Log
from anyformer.safe_files import check_output_name, replace_file, writing
from anyformer.tasks import Task, find
from anyformer.tasks.trained_model import preprocess_of

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".txt", ".conll")


def predict_files(
    run: Path, files: list[Path], out: Path | None, *, device: str, batch_size: int, as_json: bool,
    log: Log, on_bad_rows: OnBadRows = "error", threshold: float | None = None,
) -> str | None:  # fmt: skip
    """Write predictions to `out`, or return them as text if it is None."""
    check_place(out)
    if out is not None and out.exists():
        raise UserError("the file is there and is not overwritten", where=str(out), fix="give a new name")
    if as_json and out is not None and out.suffix != ".jsonl":
        raise UserError("--json writes one object a line", where=str(out), fix=f"name it {out.stem}.jsonl")
    predictor = load(run, device=device)
    if predictor.preprocess is None or not predictor.answers_rows():
        fix = f'anyformer generate {run} "..."' if predictor.preprocess is not None else "give a run"
        raise UserError("this model does not answer rows", where=str(run), fix=fix)
    predictor = predictor if threshold is None else predictor.with_threshold(threshold)
    preprocess, settings = preprocess_of(predictor), settings_of(run)
    task = find(preprocess.task)
    if out is not None and out.suffix in task.own_suffixes:
        return write_or_return(task.prediction_file(predictor, files, out.suffix), out)
    if out is not None and out.suffix not in SUFFIXES and not task.writes_text:  # texts may have any: new.de
        raise UserError(f"no format ends in {out.suffix!r}", where=str(out), fix=did_you_mean(out.suffix, SUFFIXES))
    with told_how_to_skip():
        table = task.prediction_table(
            predictor, files, settings, batch_size=batch_size, on_bad_rows=on_bad_rows, log=log
        )
        if table is not None:
            return write_or_return(
                encode_table(table, ".jsonl" if as_json else out.suffix if out is not None else ".csv"), out
            )
        found = predict_rows(
            predictor, files, batch_size=batch_size, log=log, settings=settings, on_bad_rows=on_bad_rows
        )
    default = task.default_suffix(lines=are_lines(found.frame))
    suffix = ".jsonl" if as_json else default if out is None else out.suffix if out.suffix in SUFFIXES else ".txt"
    return write_or_return(render_predictions(found, suffix, preprocess), out)


@contextmanager
def told_how_to_skip() -> Iterator[None]:
    """For a bad row of a file, suggest the command-line option to skip it."""
    try:
        yield
    except UserError as error:
        if "bad=" not in error.fix:
            raise
        fix = "fix or remove it, or add --skip-bad-rows"
        raise UserError(error.what, where=error.where, fix=fix, details=error.details) from None


def write_or_return(data: bytes, out: Path | None) -> str | None:
    """Return text if there is no file; write a file atomically."""
    if out is None:
        return data.decode("utf-8")
    with writing(out, len(data)):
        replace_file(out, data)
    return None


def are_lines(frame: Frame) -> bool:
    """Whether rows are lines of a text file."""
    return bool(frame.sources) and len(frame.names) == 1 and all(source.unit == "line" for source in frame.sources)


def render_predictions(found: PredictedRows, suffix: str, preprocess: Preprocess) -> bytes:
    """The bytes of a prediction file."""
    if found.answers is None:
        raise UserError("no row can be read", where=found.frame.place(0), fix="give other files",
                        details=[error.line for error in list(found.bad.values())[:TOLD]])  # fmt: skip
    task = find(preprocess.task)
    if suffix == ".txt":
        lines = found.aligned([one_line(value) for value in task.predictions(found.answers)])
        return "".join(f"{line or ''}\n" for line in lines).encode("utf-8")
    if suffix == ".conll":
        return task.to_conll(found.answers, preprocess).encode("utf-8")
    return encode_table(with_answers(found, task), suffix)


def encode_table(table: Any, suffix: str) -> bytes:
    """A table as a file of some kind."""
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()
    if suffix == ".jsonl":
        lines = (json.dumps(row, ensure_ascii=False, default=str) for row in table.to_pylist())
        return "".join(f"{line}\n" for line in lines).encode("utf-8")
    return encode_delimited(table, "\t" if suffix == ".tsv" else ",")


def with_answers(found: PredictedRows, task: Task) -> Any:
    """The input rows plus the model's columns, empty for skipped rows."""
    import pyarrow as pa

    assert found.answers is not None
    ours = {name: found.aligned(values) for name, values in task.prediction_columns(found.answers).items()}
    if found.cut.any():
        ours["cut"] = found.aligned(found.cut.tolist())
    table = found.frame.table
    table = table.rename_columns(names_beside(table.column_names, list(ours)))
    for name, values in ours.items():
        table = table.append_column(name, pa.array(values))
    return table


def names_beside(names: Sequence[str], ours: Sequence[str]) -> list[str]:
    """Names for a file's columns beside ours: a conflicting one is renamed to an unused name.

    >>> names_beside(["text", "prediction"], ["prediction", "cut"])
    ['text', 'prediction_before']
    >>> names_beside(["prediction", "prediction_before"], ["prediction"])
    ['prediction_before_2', 'prediction_before']
    """
    taken, found = {*names, *ours}, []
    for name in names:
        if name in ours:
            wanted = name = f"{name}_before"
            for number in itertools.count(2):
                if name not in taken:
                    break
                name = f"{wanted}_{number}"
            taken.add(name)
        found.append(name)
    return found


def check_place(out: Path | None) -> None:
    """Reject an output path that cannot be written, before any work."""
    if out is not None:
        check_output_name(out, "--out")
    if out is not None and out.is_dir():
        raise UserError("is a folder", where=str(out), fix=f"-o {out / 'predictions.csv'}")
    if out is not None and not out.parent.is_dir():
        raise UserError("the folder is not there", where=str(out), fix=f"mkdir -p {out.parent}")
    if out is not None and not os.access(out.parent, os.W_OK):
        raise UserError("the folder may not be written to", where=str(out), fix="give another place")


def encode_delimited(table: Any, delimiter: str) -> bytes:
    """Rows as text with a delimiter, quoted where needed."""
    import csv

    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter, lineterminator="\n")
    writer.writerow(table.column_names)
    for batch in table.to_batches(max_chunksize=8192):
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        writer.writerows([["" if cell is None else show_cell(cell) for cell in row] for row in rows])
    return sink.getvalue().encode("utf-8")


def show_cell(cell: Any) -> Any:
    return " ".join(map(str, cell)) if isinstance(cell, list) else cell


def one_line(value: Any) -> str:
    text = ";".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join(text.split("\n"))

"""Prediction files: the input rows, with what the model says of them beside."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.rows import RowExamples
from anyformer.errors import UserError, did_you_mean
from anyformer.evaluation.answers import Answers
from anyformer.outputs import check_output_name, replace_file, scratch_folder, writing
from anyformer.predictor import load
from anyformer.training.answer import Asked, asked, cells, predictions
from anyformer.training.evaluation import settings_of

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".txt", ".conll")


def predict_files(
    run: Path, files: list[Path], out: Path | None, *, device: str, batch: int, as_json: bool,
    say: Callable[[str], None],
) -> str | None:  # fmt: skip
    """Write predictions to `out`, or give them as text where there is none."""
    check_place(out)
    if out is not None and out.exists():
        raise UserError("the file is there and is not overwritten", where=str(out), fix="give a new name")
    predictor = load(run, device=device)
    if predictor.preprocess is None or not predictor.has_columns():
        fix = f'anyformer generate {run} "..."' if predictor.preprocess is not None else "give a run"
        raise UserError("this model does not answer rows", where=str(run), fix=fix)
    writes = predictor.preprocess.task == "translate"  # texts go to a file of any name: new.de
    if out is not None and out.suffix not in SUFFIXES and not writes:
        raise UserError(f"no format ends in {out.suffix!r}", where=str(out), fix=did_you_mean(out.suffix, SUFFIXES))
    if predictor.preprocess.task == "detect":
        from anyformer.training.detecting import object_table

        suffix = ".jsonl" if as_json else out.suffix if out is not None else ".csv"
        return handed(tabled(object_table(predictor, files, batch=batch), suffix), out)
    if predictor.preprocess.task == "forecast":
        return forecast(predictor, run, files, out, as_json=as_json, say=say)
    # Every row of the file must have its answer beside it, so a row that cannot be read is not passed over.
    try:
        found = asked(predictor, files, batch=batch, say=say, settings=settings_of(run, bad="error"))
    except UserError as error:
        if "bad=error" not in error.fix:
            raise
        raise UserError(error.what, where=error.where, fix="mend or remove it", details=error.details) from None
    blank = int(found.unseen.sum())
    if blank:
        say(f"unread   {blank:,} image{'s' * (blank > 1)}; no prediction is given where nothing else was there to see")
    suffix = ".jsonl" if as_json else out.suffix if out is not None else shape_of(found.answers)
    return handed(rendered(found, suffix if suffix in SUFFIXES else ".txt"), out)


def handed(data: bytes, out: Path | None) -> str | None:
    """Text where there is no file to write; a file is there whole or not at all."""
    if out is None:
        return data.decode("utf-8")
    with writing(out, len(data)):
        replace_file(out, data)
    return None


def forecast(
    predictor: Any, run: Path, files: list[Path], out: Path | None, *, as_json: bool, say: Callable[[str], None]
) -> str | None:
    """The steps that come after the last row of a series."""
    from anyformer.training.forecasting import foreseen

    with scratch_folder() as cache:
        table = foreseen(predictor, files, settings=settings_of(run, bad="error"), cache=cache, say=say)
    return handed(tabled(table, ".jsonl" if as_json else out.suffix if out is not None else ".csv"), out)


def shape_of(found: Answers) -> str:
    """How predictions are printed: tags as CoNLL, lines of text line by line, all else as CSV."""
    if found.task == "tag":
        return ".conll"
    frame = found.examples.frame
    lines = len(frame.names) == 1 and all(source.unit == "line" for source in frame.sources) and frame.sources
    return ".txt" if found.task == "translate" or lines else ".csv"


def rendered(found: Asked, suffix: str) -> bytes:
    """The bytes of a prediction file."""
    examples = found.answers.examples
    assert isinstance(examples, RowExamples)
    if suffix == ".txt":
        return "".join(f"{one_line(value)}\n" for value in predictions(found.answers)).encode("utf-8")
    if suffix == ".conll":
        return conll(found.answers, examples)
    return tabled(with_answers(found, examples), suffix)


def tabled(table: Any, suffix: str) -> bytes:
    """A table as a file of some kind."""
    if suffix == ".parquet":
        import pyarrow.parquet as pq

        sink = io.BytesIO()
        pq.write_table(table, sink)
        return sink.getvalue()
    if suffix == ".jsonl":
        lines = (json.dumps(row, ensure_ascii=False, default=str) for row in table.to_pylist())
        return "".join(f"{line}\n" for line in lines).encode("utf-8")
    return separated(table, "\t" if suffix == ".tsv" else ",")


def with_answers(found: Asked, examples: RowExamples) -> Any:
    """The rows as they were, then the model's columns; a column of the same name makes way."""
    import pyarrow as pa

    table = examples.frame.table
    alone = len(examples.preprocess.columns or ()) == 1
    for name, values in cells(found.answers).items():
        if name in table.column_names:
            table = table.rename_columns([f"{name}_before" if n == name else n for n in table.column_names])
        blind = found.unseen if alone else np.zeros(len(values), bool)
        table = table.append_column(
            name, pa.array([None if lost else v for v, lost in zip(values, blind, strict=True)])
        )
    return table.append_column("cut", pa.array(found.cut.tolist())) if found.cut.any() else table


def check_place(out: Path | None) -> None:
    """Refuse a place that cannot be written to before the work is done."""
    if out is not None:
        check_output_name(out, "--out")
    if out is not None and out.is_dir():
        raise UserError("is a folder", where=str(out), fix=f"-o {out / 'predictions.csv'}")
    if out is not None and not out.parent.is_dir():
        raise UserError("the folder is not there", where=str(out), fix=f"mkdir -p {out.parent}")
    if out is not None and not os.access(out.parent, os.W_OK):
        raise UserError("the folder may not be written to", where=str(out), fix="give another place")


def separated(table: Any, delimiter: str) -> bytes:
    """Rows as text with a delimiter, quoted where needed."""
    import csv

    sink = io.StringIO(newline="")
    writer = csv.writer(sink, delimiter=delimiter, lineterminator="\n")
    writer.writerow(table.column_names)
    for batch in table.to_batches(max_chunksize=8192):
        writer.writerows([["" if cell is None else shown(cell) for cell in row.values()] for row in batch.to_pylist()])
    return sink.getvalue().encode("utf-8")


def shown(cell: Any) -> Any:
    return " ".join(map(str, cell)) if isinstance(cell, list) else cell


def one_line(value: Any) -> str:
    text = ";".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join(text.split("\n"))


def conll(found: Answers, examples: RowExamples) -> bytes:
    """One word and its tag a line, a blank line between sentences."""
    from anyformer.data.columns import Sentence

    name = examples.preprocess.of(Sentence)[0].name
    lines = []
    for row, tags in enumerate(found.predicted):
        words = examples.cells(row)[name]
        lines += [f"{word}\t{tag}" for word, tag in zip(words, tags, strict=False)] + [""]
    return ("\n".join(lines) + "\n").encode("utf-8")

"""`prepare`: from files or Python data to examples, with every decision said. What `train` and `check` call first."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.columns.cells import texts
from anyformer.data.columns.look import look
from anyformer.data.counts import Counts
from anyformer.data.datasets.arrays import Arrays, MemoryArrays
from anyformer.data.datasets.encode_rows import encode, encode_target
from anyformer.data.datasets.prepare_series import prepare_gathered
from anyformer.data.datasets.rows import RowExamples
from anyformer.data.files.conll import read_words
from anyformer.data.files.path_kinds import kind_of_path
from anyformer.data.frame import Frame, Source
from anyformer.data.gather import gather, origin_of, paths_of
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.prepare_rows import prepare_rows, put_targets
from anyformer.data.prepared import Given, Prepared, Say
from anyformer.data.preprocess import Preprocess, fitting
from anyformer.data.recognise import shows_objects, shows_series
from anyformer.data.settings import Data, Format
from anyformer.data.splits import FREE, SIDES, TRAIN
from anyformer.data.store import opened, pad_of
from anyformer.data.tokenizers.tokenizer import Tokenizer
from anyformer.data.unused import refuse_both, refuse_columns
from anyformer.errors import UserError


def prepare(
    source: Any,
    *,
    task: str | None = None,
    settings: Data | None = None,
    seed: int = 0,
    cache: Path,
    given: Given | None = None,
    say: Say = lambda line: None,
) -> Prepared:
    """Files (paths) or Python data, ready to train on; every decision is said, and kept in `notes` and `facts`."""
    settings, given = settings or Data(), given or Given()
    paths = paths_of(source)
    objects = shows_objects(paths, settings) if task is None else ""
    if task == "detect" or objects:
        from anyformer.data.datasets.prepare_detection import prepare_detection

        refuse_columns(settings, "images with objects")
        return prepare_detection(paths, settings, seed=seed, cache=cache, given=given, say=say, why=objects)
    origin = "table" if paths is None else origin_of(paths, task)
    if task == "forecast":
        from anyformer.data.datasets.prepare_series import prepare_series

        refuse_both(settings, "a time series")
        refuse_columns(settings, "a time series", used=("--target", "--inputs", "--types", "--time", "--split-column"))
        return prepare_series(source, settings, cache=cache, say=say)
    if origin == "fasta":
        from anyformer.data.files.fasta import by_residue

        alone = settings.target is None and all(kind_of_path(path) == "fasta" for path in paths or ())
        task = task or ("lm" if alone else None)
        settings = by_residue(settings, alone=task == "lm")
    if task == "lm" or (task is None and origin == "text"):
        from anyformer.data.datasets.text import prepare_text, prepare_texts

        if paths is not None and origin == "text":
            refuse_columns(settings, "running text")
            return prepare_text(paths, settings, seed=seed, cache=cache, given=given, say=say)
        refuse_both(settings, "a language model")
        refuse_columns(settings, "a language model", used=("--target", "--inputs", "--types", "--split-column"))
        sides = texts_of(source, origin, settings, cache)
        whole = settings.replace(split=settings.split.replace(valid_file=None, test_file=None))  # they are in `sides`
        return prepare_texts(sides["train"], whole, seed=seed, cache=cache, given=given, say=say,
                             valid=sides["valid"] or None, test=sides["test"] or None)  # fmt: skip
    there = cache.exists()
    try:
        gathered = gather(source, origin, settings, cache / "read")
        series = shows_series(gathered.frame, settings) if task is None and origin == "table" else ""
        if series:
            return prepare_gathered(gathered, settings, cache=cache, say=say, why=series)
        return prepare_rows(gathered, task, settings, seed=seed, cache=cache, given=given, say=say)
    except BaseException:
        if not there:  # a mistake leaves nothing behind
            shutil.rmtree(cache, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(cache / "read", ignore_errors=True)


def texts_of(source: Any, origin: str, settings: Data, cache: Path) -> dict[str, list[str]]:
    """The texts of a table's one text column, for a language model, by side; files that validate or test say theirs."""
    gathered = gather(source, origin, settings, cache / "read")
    frame = gathered.frame
    names = list(settings.inputs or settings.target or ())
    names = names or [name for name, facts in look(frame, settings.kinds()).items() if facts.column.is_text]
    if len(names) != 1 or names[0] not in frame.names:
        first = (names or frame.names)[0]
        raise UserError("which column holds the text is not said", where="--task lm", fix=f"add --inputs {first}")
    side = np.zeros(len(frame), np.int8) if gathered.fixed is None else gathered.fixed
    side = np.where(side == FREE, TRAIN, side)
    cells = list(zip(texts(frame.column(names[0])), side.tolist(), strict=True))
    return {name: [text for text, at in cells if at == number and text] for number, name in enumerate(SIDES)}


def open_prepared(cache: Path) -> Prepared | None:
    """What was prepared in a folder, to the same bits; None where it is not there, damaged or of another kind."""
    arrays = Arrays.of(cache)
    return None if arrays is None else opened(arrays)


# ---------------------------------------------------------------- new rows


def frame_for(source: Any, preprocess: Preprocess, settings: Data, cache: Path) -> tuple[Frame, list[str]]:
    """New files or data with the columns a model was trained on, in any order, and what is worth saying about them.

    Where the model reads one text and nothing else, a file of plain text is taken line by line.
    """
    columns = preprocess.columns or ()
    lone = columns[0].name if len(columns) == 1 else None
    paths = paths_of(source)
    origin = "table" if paths is None else origin_of(paths, "lm" if preprocess.texts and lone else preprocess.task)
    if paths is not None and len(paths) == 2 and preprocess.task == "translate":
        origin = origin_of(paths, "translate")
    if paths is not None and preprocess.task == "tag" and all(kind_of_path(path) == "text" for path in paths):
        frame = read_words(paths, settings.format)
    elif paths is not None and origin == "text":
        frame = lines_of(paths, lone or "text", settings.format)
    else:
        plain = settings.replace(split=settings.split.replace(valid_file=None, test_file=None, column=None))
        frame = gather(source, origin, plain, cache / "read").frame
    return frame_of_model(frame, preprocess)


def frame_of_model(frame: Frame, preprocess: Preprocess) -> tuple[Frame, list[str]]:
    """A table checked for the columns of a model; a single column needs no name where the model reads but one."""
    columns = preprocess.columns or ()
    if len(columns) == 1 and len(frame.names) == 1 and frame.names != [columns[0].name]:
        frame = replace(frame, table=frame.table.rename_columns([columns[0].name]))
    _, notes = fitting(frame, preprocess)
    return frame, notes


def lines_of(paths: list[Path], name: str, format: Format) -> Frame:
    """Files of plain text, one row a line."""
    import pyarrow as pa

    from anyformer.data.files.open_text import opened as look_at

    sources, rows = [], []
    for path in paths:
        file = look_at(path, format)
        found = list(file.lines())
        sources.append(Source(file.name, str(path), len(found), file.bytes, file.sha256, "line", 1, file.notes))
        rows += found
    return Frame(pa.table({name: pa.array(rows, pa.string())}), tuple(sources))


def examples_for(
    frame: Frame,
    preprocess: Preprocess,
    tokenizer: Tokenizer | None,
    cache: Path | None,
    *,
    images: ImageSteps | None = None,
) -> tuple[RowExamples, Counts]:
    """New rows as examples, all of them, in their order; targets that are missing or new do not count.

    The arrays are in the folder `cache`, or in memory where there is none.
    """
    needed, _ = fitting(frame, preprocess)
    arrays = MemoryArrays() if cache is None else Arrays.new(cache)
    preprocess, counts = encode(needed, preprocess, tokenizer, arrays, train=None, images=images)
    put_targets(arrays, preprocess, encode_target(needed, preprocess))
    rows = np.arange(len(frame))
    return RowExamples(arrays, frame, preprocess, rows, pad=pad_of(tokenizer), images=images), counts

"""`prepare`: from files or Python data to examples, with every decision logged. `train` and `check` call it first."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.columns.cells import texts
from anyformer.data.columns.look import look
from anyformer.data.datasets.panel import spread_new
from anyformer.data.default_split import settle_split
from anyformer.data.file_tasks import add_known_tasks
from anyformer.data.files.fasta import by_residue
from anyformer.data.files.image_folders import unlabelled_images
from anyformer.data.frame import Frame, Source
from anyformer.data.gather import Gathered, gather, origin_of, paths_of
from anyformer.data.prepare_rows import prepare_rows
from anyformer.data.prepared import DataRequest, Prepared, StartModelConstraints
from anyformer.data.preprocess import Preprocess, fitting
from anyformer.data.report import log_files
from anyformer.data.settings import Data, Format
from anyformer.data.splits import FREE, TRAIN
from anyformer.data.targets import Future, TaskAnswer
from anyformer.deprecated_names import log_of
from anyformer.errors import UserError
from anyformer.log import Log, keep_lines, silence
from anyformer.tasks.base import Task
from anyformer.tasks.decide import decide
from anyformer.tasks.known_tasks import all_tasks, find
from anyformer.tasks.row_task import RowTask


def prepare(
    source: Any,
    *,
    task: str | None = None,
    settings: Data | None = None,
    seed: int = 0,
    cache: Path,
    given: StartModelConstraints | None = None,
    log: Log = silence,
    say: Log | None = None,
) -> Prepared:
    """Prepare files (paths) or Python data for training; every decision is logged and kept in `notes` and `facts`.

    `say` is the deprecated name of `log`.
    """
    log = log_of(log, say)
    settings, given = settings or Data(), given or StartModelConstraints()
    chosen, why = (find(task), "") if task is not None else recognise(source, settings)
    request = DataRequest(source, settings, cache, seed, given, log, why)
    return prepare_table(request, chosen) if chosen is None or isinstance(chosen, RowTask) else chosen.prepare(request)


def recognise(source: Any, settings: Data) -> tuple[Task | None, str]:
    """The task that the files themselves indicate, and why; the newest task is tried first."""
    paths = paths_of(source)
    for task in reversed(all_tasks()):
        why = task.recognise(paths, settings)
        if why:
            return task, why
    return None, ""


def prepare_table(request: DataRequest, task: RowTask | None) -> Prepared:
    """Prepare rows of a table; the task is inferred from them if none is named."""
    source, settings, cache = request.source, request.settings, request.cache
    paths = paths_of(source)
    origin = "table" if paths is None else origin_of(paths, None if task is None else task.origin)
    if paths is not None and task is not None and not task.has_target and (files := unlabelled_images(paths)):
        source, origin = {"image": files}, "table"  # images without labels need no class folders
    if origin == "fasta":
        settings = by_residue(settings, alone=False)
    there = cache.exists()
    notes, log = keep_lines(request.log)
    try:
        if task is not None and task.takes_lines and paths is not None and origin_of(paths, None) == "text":
            gathered = gather_lines(paths, settings)
        else:
            gathered = gather(source, origin, settings, cache / "read")
        for other in reversed(all_tasks()) if task is None and origin == "table" else ():
            why = other.recognise_rows(gathered.frame, settings)
            if why:
                return other.prepare_gathered(gathered, replace(request, settings=settings, why=why))
        if (
            origin == "texts"
            and not settings.kinds()
            and not look(gathered.frame.of(["text"]), {})["text"].column.is_text
        ):
            settings = settings.replace(types=("text=text",))  # however few and short they are
        # In a file of tagged words the target only names the column that was read.
        named = None if gathered.origin == "sentences" else settings.target or gathered.target
        settings = settings.replace(split=settings.split.replace(column=gathered.column), target=named)
        log_files(gathered.frame, log)
        if task is not None and paths is not None and len(paths) > 1 and (remark := task.remark_on(gathered, settings)):
            log(remark)
        decision = decide(gathered.frame, settings, task=task, origin=gathered.origin, given=request.given)
        settings, notes_on_split = settle_split(settings, gathered, decision)
        decision = replace(decision, notes=(*decision.notes, *notes_on_split))
        return prepare_rows(gathered, decision, replace(request, settings=settings), notes, log)
    except BaseException:
        if not there:  # leave nothing behind after an error
            shutil.rmtree(cache, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(cache / "read", ignore_errors=True)


def unlabelled_texts(source: Any, task: Task, settings: Data, cache: Path) -> list[str]:
    """The texts of rows without a target, except those assigned to validation or test by a file or column."""
    if not isinstance(task, RowTask):
        return []
    paths = paths_of(source)
    origin = "table" if paths is None else origin_of(paths, task.origin)
    gathered = gather(source, origin, settings, cache)
    frame = gathered.frame
    settings = settings.replace(split=settings.split.replace(column=gathered.column))
    decision = decide(frame, settings, task=task, origin=gathered.origin)
    absent = np.zeros(len(frame), bool)
    for _, mask in task.target_problems(frame, decision):
        absent |= mask
    if gathered.fixed is not None:
        absent &= (gathered.fixed == FREE) | (gathered.fixed == TRAIN)
    rows = np.flatnonzero(absent)
    columns = [texts(frame.take(rows).column(one.name)) for one in decision.inputs if one.column.is_text]
    return [joined for cells in zip(*columns, strict=True) if (joined := " ".join(cell for cell in cells if cell))]


# ---------------------------------------------------------------- new rows


def read_new_rows(source: Any, preprocess: Preprocess, settings: Data, cache: Path) -> tuple[Frame, list[str]]:
    """Read new files or data with the columns of a trained model, in any order; also returns notes for the user.

    If the model reads a single text, a plain-text file is read line by line.
    """
    task, columns = find(preprocess.task), preprocess.columns or ()
    lone = columns[0].name if len(columns) == 1 else None
    plain = settings.replace(split=settings.split.replace(valid_file=None, test_file=None, column=None))
    paths = paths_of(source)
    frame = None if paths is None else task.read_new_files(paths, plain, cache / "read")
    if frame is None:
        wanted = "text" if preprocess.texts and lone else task.origin
        origin = "table" if paths is None else origin_of(paths, wanted)
        if paths is not None and origin == "text":
            frame = lines_of(paths, lone or "text", settings.format)
        else:
            frame = gather(source, origin, plain, cache / "read", whole=True).frame
    return frame_of_model(frame, preprocess)


def frame_of_model(frame: Frame, preprocess: Preprocess) -> tuple[Frame, list[str]]:
    """A table checked for the columns of a model; a single column needs no name if the model reads only one."""
    columns, target, spreading = preprocess.columns or (), preprocess.target, list[str]()
    if isinstance(target, TaskAnswer):
        frame = add_known_tasks(frame, target.task, target.task_of_file)
    if isinstance(target, Future) and target.panel is not None:
        frame, spreading = spread_new(frame, target)
    if len(columns) == 1 and len(frame.names) == 1 and frame.names != [columns[0].name]:
        frame = replace(frame, table=frame.table.rename_columns([columns[0].name]))
    _, notes = fitting(frame, preprocess)
    return frame, [*spreading, *notes]


def gather_lines(paths: list[Path], settings: Data) -> Gathered:
    """Text files as rows, one per line, without empty lines."""
    if settings.split.valid_file or settings.split.test_file:
        raise UserError("lines of text are split at random", where="--valid", fix="give tables with a column of text")
    frame = lines_of(paths, "text", settings.format)
    written = frame.table.column("text").to_pylist()
    return Gathered(frame.take(np.flatnonzero([bool(text and text.strip()) for text in written])), "table")


def lines_of(paths: list[Path], name: str, format: Format) -> Frame:
    """Text files, one row per line."""
    import pyarrow as pa

    from anyformer.data.files.open_text import open_text_file as look_at

    sources, rows = [], []
    for path in paths:
        file = look_at(path, format)
        found = list(file.lines())
        sources.append(Source(file.name, str(path), len(found), file.bytes, file.sha256, "line", 1, file.notes))
        rows += found
    return Frame(pa.table({name: pa.array(rows, pa.string())}), tuple(sources))

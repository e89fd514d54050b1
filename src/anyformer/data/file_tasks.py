"""Files that are one task each: a column with the task of each row, from the file name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from anyformer.data.frame import Frame
from anyformer.data.settings import Mixture
from anyformer.errors import UserError, did_you_mean

TASK = "task"  # name of the new column
PACKED = (".gz", ".xz", ".zst", ".bz2")


def stem_of(name: str) -> str:
    """A file name without its suffix.

    >>> stem_of("summarize.csv.gz"), stem_of("ask.v2.tsv")
    ('summarize', 'ask.v2')
    """
    path = Path(name)
    return (path.with_suffix("") if path.suffix in PACKED else path).stem


def tasks_of_files(frame: Frame, mixture: Mixture) -> dict[str, str]:
    """The task of each file of a frame, by the file's stem."""
    given = mixture.task_of_file()
    known = [stem_of(source.name) for source in frame.sources]
    for name in given:
        if stem_of(name) not in known and name not in known:
            raise UserError(f"unknown file {name!r}", where="data.mixture.prefixes",
                            fix=did_you_mean(name, known))  # fmt: skip
    chosen = {stem_of(name) if name not in known else name: task for name, task in given.items()}
    return {name: chosen.get(name, name) for name in known}


def add_tasks_of_files(frame: Frame, mixture: Mixture, *, trained: int) -> Frame:
    """Add a column with the task of each row's file; the first `trained` files are training files.

    A validation or test file needs a task that is trained.
    """
    if TASK in frame.names:
        raise UserError(f"the files have a column {TASK!r} already", where="data.mixture.by_file", fix="leave it out")
    if len(frame.sources) < 2 or not frame.sources[0].path:
        raise UserError("there is one task a file, and these are not several files", where="data.mixture.by_file",
                        fix=f"give a file for each task, or a column {TASK}")  # fmt: skip
    tasks = tasks_of_files(frame, mixture)
    learned = {tasks[stem_of(source.name)]: None for source in frame.sources[:trained]}
    for source in frame.sources[trained:]:
        if tasks[stem_of(source.name)] not in learned:
            what = f"its task {tasks[stem_of(source.name)]!r} is that of no training file"
            entry = f"{stem_of(source.name)}={next(iter(learned))}"
            raise UserError(what, where=source.name, fix=f'say which it is: --set "data.mixture.prefixes=[{entry}]"')
    return with_tasks(frame, tasks)


def with_tasks(frame: Frame, tasks: Mapping[str, str], column: str = TASK) -> Frame:
    """The frame with the task of each row's file as its first column."""
    import pyarrow as pa

    ends = np.cumsum([source.rows for source in frame.sources])
    numbers = np.arange(len(frame)) if frame.numbers is None else frame.numbers
    names = np.array([tasks[stem_of(source.name)] for source in frame.sources], dtype=object)
    made = names[np.searchsorted(ends, numbers, side="right")]
    return replace(frame, table=frame.table.add_column(0, column, pa.array(made.tolist(), pa.string())))


def add_known_tasks(frame: Frame, column: str, tasks: Mapping[str, str]) -> Frame:
    """Add the task column to new rows, if they lack it and every file's name is known."""
    known = all(source.path and stem_of(source.name) in tasks for source in frame.sources)
    if column in frame.names or not tasks or not frame.sources or not known:
        return frame
    return with_tasks(frame, tasks, column)

"""One archive a set: what has to travel to a machine with a GPU."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from benchmarks.scoreboard.sets import DataSet


def archive_of(data: Path, chosen: DataSet) -> Path:
    return data / f"{chosen.name}.tar.xz"


def prepare(raw: Path, data: Path, chosen: DataSet) -> None:
    """Write the files of a set and pack them, unless that was done before."""
    path = archive_of(data, chosen)
    if path.is_file():
        return
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        folder = Path(scratch) / chosen.name
        folder.mkdir()
        chosen.write(raw, folder)
        partial = Path(scratch) / path.name
        with tarfile.open(partial, "w:xz") as packed:
            packed.add(folder, chosen.name)
        partial.replace(path)  # whole or not at all: a run that was cut short begins this set anew


def unpack(data: Path, chosen: DataSet, scratch: Path) -> Path:
    """The folder of a set, unpacked into `scratch` anew."""
    folder = scratch / chosen.name
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive_of(data, chosen)) as packed:
        packed.extractall(scratch, filter="data")
    return folder

"""Tables of file names, with the files in a folder beside them: labels.csv and images/, meta.csv and audio/."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from anyformer.data.files.path_kinds import IMAGES, SOUNDS, kind_of_name
from anyformer.data.frame import Frame

ENDINGS = (*IMAGES, *SOUNDS)
FIRST = 20  # names checked first, before all of them are
SPREAD = 100  # names checked to find which folders have the files
DEEP, MOST = 3, 2000  # depth of the folder search, and maximum number of folders
READ = 1 << 20  # bytes of a table searched for file names
NEAR, FEW = 1, 50  # the same for names without a suffix, which may be any words


def find_named_files(frame: Frame) -> Frame:
    """The frame with the folder prepended to names of files that are not beside the table but in a folder below it.

    Names without a suffix are taken for file names if all of the first ones exist, and no two are the same.
    """
    import pyarrow as pa

    if not frame.sources or not frame.sources[0].path:
        return frame
    base = frame.folder
    beside = [os.path.join(os.pardir, each) for each in folders_below(base.parent, 1, FEW)[1:]]  # meta/x.csv and audio/
    near = [*folders_below(base, NEAR, FEW), *beside]
    table, remarks = frame.table, []
    for at, name in enumerate(frame.names):
        if not pa.types.is_string(table.schema.field(at).type):
            continue
        first = [cell for cell in table.column(at).slice(0, 200).to_pylist() if cell and cell.strip()]
        if not first or any(len(cell) > 255 or os.path.isabs(cell) or "\0" in cell for cell in first[:FIRST]):
            continue
        named = sum(cell.lower().endswith(ENDINGS) for cell in first) >= 0.9 * len(first)
        if (named and any_there([base, Path()], first)) or (not named and len(set(first)) < len(first)):
            continue
        # Row numbers beside columns of their own: a folder with 0.png in it is more likely unrelated.
        if not named and len(frame.names) > 2 and all(cell.strip().isdecimal() for cell in first):
            continue
        ending = "" if named else ending_of(base, near, first)
        if ending is None:
            continue
        some = spread(table.column(at))  # the first ones may all be in one of several folders
        below = [*folders_below(base, DEEP, MOST), *beside] if named else near
        holders = [each for each in below if any(os.path.isfile(base / each / (cell + ending)) for cell in some)]
        if holders and is_most_there(base, holders, some, ending):
            cells = [place(base, holders, cell, ending) for cell in table.column(at).to_pylist()]
            table = table.set_column(at, name, pa.array(cells, pa.string()))
            shown = ", ".join(each or "." for each in holders[:3]) + (" and more" if len(holders) > 3 else "")
            remarks.append(f"{name} names files in {shown}" + (f", there with the ending {ending}" if ending else ""))
    return replace(frame, table=table, remarks=(*frame.remarks, *remarks)) if remarks else frame


def spread(column: Any) -> list[str]:
    """Cells sampled evenly from a column."""
    rows = range(0, len(column), max(1, len(column) // SPREAD))
    return [cell for row in rows if (cell := column[row].as_py())]


def any_there(folders: Sequence[Path], names: Sequence[str]) -> bool:
    return any(os.path.isfile(folder / name) for folder in folders for name in names[:FIRST])


def folders_below(base: Path, deep: int, most: int) -> list[str]:
    """The folder itself and those below it as relative paths, nearest first."""
    found = [""]
    for each in found:
        if len(found) >= most or each.count(os.sep) + bool(each) >= deep:
            continue
        try:
            with os.scandir(base / each) as entries:
                inner = sorted(one.name for one in entries if one.is_dir() and not one.name.startswith("."))
        except OSError:
            continue
        found += [os.path.join(each, name) for name in inner][: most - len(found)]
    return found


def ending_of(base: Path, folders: Sequence[str], names: Sequence[str]) -> str | None:
    """The suffix with which all of the first names are files in one of the folders, or None."""
    some = names[:FIRST]
    for folder in folders:
        endings = (ending for ending in ENDINGS if os.path.isfile(base / folder / (some[0] + ending)))
        for ending in endings:
            if all(os.path.isfile(base / folder / (name + ending)) for name in some):
                return ending
    return None


def place(base: Path, folders: Sequence[str], cell: Any, ending: str) -> Any:
    """A cell with its file's folder prepended; unchanged if the file is in none."""
    if not cell or not cell.strip():
        return cell
    found = next((each for each in folders if os.path.isfile(base / each / (cell + ending))), None)
    return cell if found is None else os.path.join(found, cell + ending)


def table_in(folder: Path) -> Path | None:
    """The only table beside the folders of a folder, which may name their files."""
    tables = [path for path in sorted(folder.iterdir()) if path.is_file() and kind_of_name(path.name) == "table"]
    return tables[0] if len(tables) == 1 else None


def table_naming(folder: Path) -> Path | None:
    """The only table beside a folder, if it names files in it."""
    table = None if not folder.resolve().name else table_in(folder.resolve().parent)
    if table is None:
        return None
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, FIRST)]
    with table.open("rb") as file:
        start = file.read(READ)
    words = set(re.split(rb"[\s,;|\"'/\\]+", start))
    named = any(part in words for name in names for part in (name.encode(), Path(name).stem.encode()))
    return folder.parent / table.name if named else None


def is_most_there(base: Path, holders: Sequence[str], names: Sequence[str], ending: str) -> bool:
    """Whether at least half of the names are files; a folder nearby may have one of them by chance."""
    different = set(names)
    there = sum(any(os.path.isfile(base / each / (name + ending)) for each in holders) for name in different)
    return 2 * there >= len(different)

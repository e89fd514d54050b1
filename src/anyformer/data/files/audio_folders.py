"""Folders of audio files with one sub-folder per class, read as a table with columns audio and label."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from anyformer.data.files.image_folders import UNNAMED, table_or, unicode
from anyformer.data.files.open_text import import_pyarrow, show_path
from anyformer.data.files.path_kinds import SOUNDS
from anyformer.data.files.side_folders import any_file, classes_in, find_side_folders
from anyformer.data.frame import Frame, Source
from anyformer.errors import UserError

LAYOUT = "make one folder a class, with its recordings inside; or give a CSV with columns audio and label"
Row = tuple[str, str, str]  # audio file, label, split or ""


def read_sounds(paths: Sequence[Path]) -> Frame:
    """Every audio file in the class folders of some folders (also below train, valid and test)."""
    import_pyarrow()
    import pyarrow as pa

    rows: list[Row] = []
    sources: list[Source] = []
    skipped: dict[str, int] = {}
    remarks: list[str] = []
    for path in paths:
        if not path.is_dir():
            raise UserError("a recording on its own has no label", where=path.name, fix=LAYOUT)
        found, source, said = class_folders(path, skipped)
        remarks += said
        rows, sources = rows + found, [*sources, source]
    labels = sorted({label for _, label, _ in rows})
    if len(labels) < 2:
        raise UserError(f"only one class ({labels[0][:60]})", where=show_path(paths[0]), fix=table_or(paths, LAYOUT))
    columns = {"audio": pa.array([row[0] for row in rows]), "label": pa.array([row[1] for row in rows])}
    if any(side for _, _, side in rows):
        columns["split"] = pa.array([side or "train" for _, _, side in rows])
    return Frame(pa.table(columns), tuple(sources), skipped, remarks=tuple(remarks))


def class_folders(root: Path, skipped: dict[str, int]) -> tuple[list[Row], Source, tuple[str, ...]]:
    """Audio files with the name of their folder, and notes on other folders."""
    inner = folders_in(root)
    if len(inner) == 1 and not any(map(is_sound, root.iterdir())) and len(folders_in(inner[0])) > 1:
        root, inner = inner[0], folders_in(inner[0])
    sides = find_side_folders(root, inner, folders_in, lambda folder: any_file(folder, is_sound))
    rows: list[Row] = []
    size, mark = 0, hashlib.sha256()
    for above, side in sides.above:
        for kind in classes_in(above, folders_in) if above != root else folders_in(above):
            for path in sounds_below(kind, skipped):
                rows.append((str(path), kind.name, side))
                size += path.stat().st_size
                mark.update(f"{path.relative_to(root).as_posix()}\0{size}\0".encode("utf-8", "surrogateescape"))
        loose = sum(is_sound(path) for path in above.iterdir())
        if loose:
            skipped["outside the class folders"] = skipped.get("outside the class folders", 0) + loose
    if not rows:
        unnamed = skipped.get(UNNAMED, 0)
        if unnamed:
            raise UserError(f"the names of all {unnamed:,} files in it, or of their folders, are not UTF-8",
                            where=show_path(root), fix="rename them")  # fmt: skip
        loose = skipped.get("outside the class folders", 0)
        what = f"{loose:,} recordings but no class folders with recordings" if loose else "no recordings"
        raise UserError(what, where=show_path(root), fix=table_or([root], LAYOUT))
    return rows, Source(root.name, str(root), len(rows), size, mark.hexdigest(), "clip"), sides.notes


def folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")


def is_sound(path: Path) -> bool:
    return path.suffix.lower() in SOUNDS and path.is_file() and not path.name.startswith(".")


def sounds_below(folder: Path, skipped: dict[str, int]) -> Iterator[Path]:
    """Audio files of one class sorted by name, at any depth."""
    for above, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names):
            path = Path(above) / name
            if not unicode(str(path)):
                skipped[UNNAMED] = skipped.get(UNNAMED, 0) + 1
            elif is_sound(path):
                yield path
            elif not name.startswith("."):
                reason = f"no recording by name ({path.suffix.lower()[:10] or 'no suffix'})"
                skipped[reason] = skipped.get(reason, 0) + 1


def unlabelled_clips(paths: Sequence[Path]) -> list[str] | None:
    """The names of all audio files in these paths; None if they have labels, or are no audio files."""
    found: list[str] = []
    for path in paths:
        if path.is_dir() and not any(any(sounds_below(folder, {})) for folder in folders_in(path)):
            found += [str(sound) for sound in sounds_below(path, {})]
        elif is_sound(path):
            found.append(str(path))
        else:
            return None
    return found or None

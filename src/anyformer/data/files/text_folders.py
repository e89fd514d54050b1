"""Folders of texts with one sub-folder per class, read as a table with columns text and label."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from anyformer.data.files.image_folders import folders_in, unicode
from anyformer.data.files.open_text import import_pyarrow, open_text_file
from anyformer.data.files.side_folders import SideFolders, any_file, classes_in, find_side_folders
from anyformer.data.frame import Frame, Source
from anyformer.data.settings import Format
from anyformer.errors import UserError

SUFFIXES = (".txt", ".text")
FEWEST = 5  # texts of a class
MOST_CLASSES = 200
LONGEST = 2**15  # typical maximum bytes of a text: longer ones are books, which are read as running text
LOOKED_AT = 200  # texts of a class examined for their length

Row = tuple[str, str, str]  # text, label, split or ""


def holds_class_texts(folder: Path) -> bool:
    """Whether a folder has short texts in class folders, and no texts beside these or deeper.

    A tree of documents does not qualify: it has nested folders, texts beside them, few or long ones.
    """
    sides = class_sides(folder)
    classes = [kind for above, _ in sides.above for kind in classes_in(above, folders_in)]
    names = {kind.name for kind in classes}
    if not 2 <= len(names) <= MOST_CLASSES:
        return False
    if any({kind.name for kind in classes_in(above, folders_in)} != names for above, _ in sides.above):
        return False
    sizes: list[int] = []
    for kind in classes:
        texts = texts_in(kind)
        if (
            len(texts) < FEWEST
            or folders_in(kind)
            or any(not is_text(path) and path.name[0] != "." for path in kind.iterdir())
        ):
            return False
        sizes += [path.stat().st_size for path in texts[:LOOKED_AT]]
    return sorted(sizes)[len(sizes) // 2] <= LONGEST and texts_beside(folder) < FEWEST


def class_sides(folder: Path) -> SideFolders:
    inner = folders_in(folder)
    if len(inner) == 1 and len(folders_in(inner[0])) > 1:
        folder, inner = inner[0], folders_in(inner[0])
    return find_side_folders(folder, inner, folders_in, lambda path: any_file(path, is_text))


def is_text(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def texts_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_text(path))


def texts_beside(folder: Path) -> int:
    """Texts beside the folders: a README and lists of names are not examples."""
    return len(texts_in(folder))


def read_text_folders(paths: Sequence[Path], format: Format, *, bad: Literal["skip", "error"] = "skip") -> Frame:
    """Every text in the class folders of some folders (also below train, valid and test), one per row."""
    import_pyarrow()
    import pyarrow as pa

    rows: list[Row] = []
    sources: list[Source] = []
    remarks: list[str] = []
    skipped: dict[str, int] = {}
    for root in paths:
        sides = class_sides(root)
        size, mark, before = 0, hashlib.sha256(), len(rows)
        for above, side in sides.above:
            for kind in classes_in(above, folders_in):
                for path in texts_in(kind):
                    text = read_text(path, format, skipped, strict=bad == "error")
                    if text is not None:
                        rows.append((text, kind.name, side))
                        size += len(text)
                        mark.update(f"{path.relative_to(root).as_posix()}\0{text}\0".encode())
        sources.append(Source(root.name, str(root), len(rows) - before, size, mark.hexdigest(), "text"))
        remarks += sides.notes
        if beside := texts_beside(root):
            remarks.append(f"{beside} text{'s' * (beside > 1)} beside the class folders left out")
    if not rows:
        raise UserError("no text can be read", where=paths[0].name, fix="give a folder of class folders with texts")
    columns = {"text": pa.array([row[0] for row in rows]), "label": pa.array([row[1] for row in rows])}
    if any(side for _, _, side in rows):
        columns["split"] = pa.array([side or "train" for _, _, side in rows])
    return Frame(pa.table(columns), tuple(sources), skipped, remarks=tuple(remarks))


def read_text(path: Path, format: Format, skipped: dict[str, int], *, strict: bool) -> str | None:
    """One file as one text; None, counted, if it is empty or unreadable."""
    if not unicode(str(path)):
        reason = "name is not UTF-8"
    elif not path.stat().st_size:
        reason = "an empty text"
    else:
        try:
            return "\n".join(open_text_file(path, format).lines())
        except UserError as error:
            if strict:
                raise
            reason = error.what
    if strict:
        raise UserError(reason, where=path.name, fix="fix or remove it, or leave out bad=error")
    skipped[reason] = skipped.get(reason, 0) + 1
    return None

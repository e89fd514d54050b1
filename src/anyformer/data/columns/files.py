"""Columns of file names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyformer.data.columns.base import FileColumn
from anyformer.data.columns.category import Category

if TYPE_CHECKING:
    from anyformer.data.columns.look import Facts, Scan


def recognise_files(seen: Scan, kind: type[FileColumn], endings: tuple[str, ...]) -> Facts | None:
    """File names of a kind, if at least one of the first exists; otherwise distinct names are left out."""
    if seen.holds != "words":
        return None
    names = seen.few.slice(0, 200).to_pylist()
    if sum(name.lower().endswith(endings) for name in names) < 0.9 * len(names):
        return None
    places = [os.path.join(folder, name) for name in names[:20] for folder in (seen.folders or [""])]
    if any(os.path.isfile(place) for place in places):
        return seen.made(kind.kind, f"names of {kind.kind} files")
    repeated = Category.repeated(seen)
    if repeated is not None:  # such as icons: names that repeat are informative by themselves
        return repeated
    return seen.left_out(f"names of {kind.plural}, none of which is there, such as {names[0][-60:]!r}")

"""The registered kinds of columns: those of this folder, and any others that were imported."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.data.columns.audio import Audio
from anyformer.data.columns.base import Column, FileColumn
from anyformer.data.columns.category import Category
from anyformer.data.columns.date import Date
from anyformer.data.columns.image import Image
from anyformer.data.columns.modality import Modality
from anyformer.data.columns.number import Number
from anyformer.data.columns.text import Sentence, Text
from anyformer.data.columns.words import WordList
from anyformer.errors import UserError
from anyformer.slots import Embed
from anyformer.spec import subclasses

__all__ = ["Audio", "Category", "Column", "Date", "FileColumn", "Image", "Number", "Sentence", "Text", "WordList"]

SKIP = "skip"  # given instead of a kind: the column is left out


def kinds() -> list[type[Column]]:
    """All kinds, in the order in which they try to recognise a column."""
    return sorted((kind for kind in subclasses(Column) if issubclass(kind, Column)), key=lambda kind: kind.rank)


def kind_named(name: str) -> type[Column]:
    """The kind with this name."""
    found = [kind for kind in kinds() if kind.kind == name]
    if len(found) != 1:
        what = f"{len(found)} kinds of column are named {name!r}" if found else f"{name!r} is not a kind of column"
        raise UserError(what, where="columns", fix="import the file that has it" if not found else "rename one")
    return found[0]


def kind_names() -> tuple[str, ...]:
    """The values of `--types`."""
    return (*(kind.kind for kind in kinds() if kind.by_name), SKIP)


def modality_named(name: str) -> type[Modality]:
    """The modality with this name, a part of a row."""
    found = next((kind.modality for kind in kinds() if kind.modality.name == name), None)
    if found is None:
        raise UserError(f"no kind of column is read as {name!r}", where="columns", fix="import the file that has it")
    return found


def only_modality(parts: Sequence[str]) -> type[Modality] | None:
    """The modality of rows that have only one; a series has none."""
    return next((kind.modality for kind in kinds() if [kind.modality.name] == list(parts)), None)


def modality_reading(embed: Embed) -> type[Modality] | None:
    """The modality that an embedding accepts."""
    return next((kind.modality for kind in kinds() if isinstance(embed, kind.modality.embeds)), None)


def modalities(columns: tuple[Column, ...]) -> tuple[Modality, ...]:
    """The network's inputs from some columns, in order."""
    found = sorted(dict.fromkeys(column.modality for column in columns), key=lambda modality: modality.rank)
    return tuple(modality(tuple(c for c in columns if c.modality is modality)) for modality in found)

"""Folders and files named after splits: train, test_images, seg_train, valid.csv."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SIDES = {
    "train": "train", "training": "train", "trn": "train", "valid": "valid", "val": "valid", "validation": "valid",
    "dev": "valid", "eval": "valid", "test": "test", "testing": "test", "tst": "test", "t10k": "test",
}  # fmt: skip
UNLABELLED = ("unsup", "unsupervised", "unlabeled", "unlabelled")  # folders of unlabelled examples

HasFiles = Callable[[Path], bool]  # whether a folder contains files of the kind, at any depth


@dataclass(frozen=True)
class SideFolders:
    """The class folders of each split, and notes on the other folders."""

    above: tuple[tuple[Path, str], ...]  # a folder of class folders and its split; "" if none is named
    notes: tuple[str, ...] = ()


def side_of_name(name: str) -> str:
    """The split that a name gives as its first or last word, or "".

    >>> side_of_name("Train"), side_of_name("seg_test"), side_of_name("val-images"), side_of_name("train2017")
    ('train', 'test', 'valid', 'train')
    >>> side_of_name("trains"), side_of_name("contest"), side_of_name("my_test_set_of_all")
    ('', '', '')
    """
    words = [word for word in re.split(r"[\W_]+|(?<=[a-z])(?=\d{2,}$)", name.lower()) if word not in ("", "of", "set")]
    words = [word for word in words if not word.isdigit()]
    if name.lower() in SIDES:
        return SIDES[name.lower()]
    return next((SIDES[word] for word in (*words[:1], *words[-1:]) if word in SIDES), "")


def find_side_folders(root: Path, inner: list[Path], folders_in: Callable[[Path], list[Path]],
                      has_files: HasFiles) -> SideFolders:  # fmt: skip
    """The split folders among the folders of a folder: those with such names that contain class folders.

    A name alone is not enough, since `train` may be a class beside `bus`: there must be two of them, or nothing else,
    and each must contain folders. One that contains only files has no labels, which is noted, as are folders outside
    the splits.
    """
    by_side: dict[Path, str] = {path: side for path in inner if (side := side_of_name(path.name))}
    with_classes = {path: unwrapped(path, folders_in, has_files) for path in by_side}
    sides = {
        path: side for path, side in by_side.items() if any(map(has_files, classes_in(with_classes[path], folders_in)))
    }
    if not sides or not (len(set(by_side.values())) > 1 or len(by_side) == len(inner)):
        return SideFolders(((root, ""),))
    notes = []
    for path in sides:
        notes += unlabelled_in(with_classes[path], folders_in)
    for path in inner:
        if path in sides or not has_files(path):
            continue
        if path in by_side:
            notes.append(f"folder {path.name} has no class folders, so that nothing is scored on it; when the model is "
                         f"trained, anyformer predict RUN {path} answers its files")  # fmt: skip
        else:
            notes.append(f"folder {path.name} is left out: by its name it is neither train, valid nor test")
    found = tuple((with_classes[path], side) for path, side in sides.items())
    alone = len({side for _, side in found}) == 1
    return SideFolders(tuple((path, "" if alone else side) for path, side in found), tuple(notes))


def classes_in(folder: Path, folders_in: Callable[[Path], list[Path]]) -> list[Path]:
    """The class folders of a folder, without those of unlabelled examples."""
    return [path for path in folders_in(folder) if path.name.lower() not in UNLABELLED]


def unlabelled_in(folder: Path, folders_in: Callable[[Path], list[Path]]) -> list[str]:
    """Notes on folders of unlabelled examples."""
    names = [path.name for path in folders_in(folder) if path.name.lower() in UNLABELLED]
    return [f"folder {folder.name}/{name} is left out: its examples have no label" for name in names]


def unwrapped(folder: Path, folders_in: Callable[[Path], list[Path]], has_files: HasFiles) -> Path:
    """The folder itself, or its only sub-folder, which archives often repeat: seg_train/seg_train/forest."""
    inner = folders_in(folder)
    return inner[0] if len(inner) == 1 and len(folders_in(inner[0])) > 1 else folder


def any_file(folder: Path, wanted: Callable[[Path], bool]) -> bool:
    """Whether a folder contains a wanted file, at any depth."""
    for above, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        if any(wanted(Path(above) / name) for name in names):
            return True
    return False

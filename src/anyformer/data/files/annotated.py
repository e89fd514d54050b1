"""Annotated images in any supported format: the files of each split in a folder, and their contents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anyformer.data.files.coco import Annotated, annotation_files, is_coco, read_coco
from anyformer.data.files.image_folders import folders_in
from anyformer.data.files.voc import read_voc, voc_files, voc_labels
from anyformer.data.files.yolo import is_yolo, read_yolo, yolo_sides
from anyformer.errors import UserError

FORMATS = "COCO's json or a folder that holds one, a folder of Pascal VOC, or YOLO's data.yaml"
DEEP, FEW = 2, 3  # unpacked archives may have the data so many folders down, beside few other folders


@dataclass(frozen=True)
class AnnotatedFiles:
    """The splits of a set of annotated images, each read by `sides[name](bad=...)`."""

    reason: str  # how the format was recognised
    sides: dict[str, Callable[..., Annotated]]  # train, and valid and test if there are files for them


def find_annotated(path: Path, deep: int = DEEP) -> AnnotatedFiles | None:
    """The annotated images in a file or folder; None if there are none or it is ambiguous."""
    here = of_file(path) if path.is_file() else of_folder(path) if path.is_dir() else None
    if here is not None or not deep or not path.is_dir():
        return here
    inner = folders_in(path)
    found = [find_annotated(each, deep - 1) for each in inner] if len(inner) <= FEW else []
    known = [each for each in found if each is not None]
    return known[0] if len(known) == 1 else None


def of_file(path: Path) -> AnnotatedFiles | None:
    """COCO's JSON, or YOLO's YAML file."""
    if is_coco(path):
        return AnnotatedFiles(f"{path.name} holds boxes as COCO writes them", {"train": partial(read_coco, path)})
    return of_yolo(path) if is_yolo(path) else None


def of_folder(path: Path) -> AnnotatedFiles | None:
    files = annotation_files(path)
    if "train" in files:
        reason = f"{files['train'].relative_to(path)} holds boxes as COCO writes them"
        return AnnotatedFiles(reason, {side: partial(read_coco, file) for side, file in files.items()})
    named = [each for each in sorted(path.glob("*.y*ml")) if is_yolo(each)]
    if len(named) == 1:
        return of_yolo(named[0])
    lists = voc_files(path)
    if not lists:
        return None
    labels = voc_labels(file for side in lists.values() for file in side)
    reason = f"{lists['train'][0].relative_to(path)} holds boxes as Pascal VOC writes them"
    return AnnotatedFiles(reason, {side: partial(read_voc, files, labels) for side, files in lists.items()})


def of_yolo(path: Path) -> AnnotatedFiles:
    reason = f"{path.name} names images with boxes as YOLO writes them"
    return AnnotatedFiles(reason, {side: partial(read_yolo, path, images) for side, images in yolo_sides(path).items()})


def open_annotated(path: Path) -> AnnotatedFiles:
    """The same, but an error if there are none."""
    if not path.exists():
        raise UserError("no such file or folder", where=str(path), fix=f"give {FORMATS}")
    found = find_annotated(path)
    if found is not None:
        return found
    # A .json file, or a folder with several of them, gets COCO's own message.
    return AnnotatedFiles("", {"train": partial(read_coco, path)})

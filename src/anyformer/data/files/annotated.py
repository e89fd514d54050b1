"""Annotated images in whatever format: which files of a folder train, validate and test, and what is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anyformer.data.files.coco import Annotated, annotation_files, is_coco, read_coco
from anyformer.data.files.voc import read_voc, voc_files, voc_labels
from anyformer.data.files.yolo import read_yolo, yolo_file, yolo_sides
from anyformer.errors import UserError

FORMATS = "COCO's json or a folder that holds one, a folder of Pascal VOC, or YOLO's data.yaml"


@dataclass(frozen=True)
class AnnotatedFiles:
    """The sides of a set of annotated images, each read by `sides[name](bad=...)`."""

    reason: str  # how the format was recognised
    sides: dict[str, Callable[..., Annotated]]  # train, and valid and test where the files say them


def find_annotated(path: Path) -> AnnotatedFiles | None:
    """What a file or folder holds; None where it is no annotated images."""
    if (named := yolo_file(path) if path.exists() else None) is not None:
        reason = f"{named.name} names images with boxes as YOLO writes them"
        return AnnotatedFiles(reason, {side: partial(read_yolo, named, of) for side, of in yolo_sides(named).items()})
    if path.is_file():
        reason = f"{path.name} holds boxes as COCO writes them"
        return AnnotatedFiles(reason, {"train": partial(read_coco, path)}) if is_coco(path) else None
    if not path.is_dir():
        return None
    files = annotation_files(path)
    if "train" in files:
        reason = f"{files['train'].relative_to(path)} holds boxes as COCO writes them"
        return AnnotatedFiles(reason, {side: partial(read_coco, file) for side, file in files.items()})
    lists = voc_files(path)
    if not lists:
        return None
    labels = voc_labels(file for side in lists.values() for file in side)
    reason = f"{lists['train'][0].relative_to(path)} holds boxes as Pascal VOC writes them"
    return AnnotatedFiles(reason, {side: partial(read_voc, files, labels) for side, files in lists.items()})


def open_annotated(path: Path) -> AnnotatedFiles:
    """The same; an error where there is nothing of the kind."""
    if not path.exists():
        raise UserError("no such file or folder", where=str(path), fix=f"give {FORMATS}")
    found = find_annotated(path)
    if found is not None:
        return found
    # A file that is called json, or a folder with several of them, gets COCO's own message.
    return AnnotatedFiles("", {"train": partial(read_coco, path)})

"""Object annotations in Pascal VOC format: one XML file per image, as exported by labelImg, CVAT and Roboflow.

A folder has `Annotations/*.xml` beside `JPEGImages`, with lists of names in `ImageSets/Main`; or the XML files are
beside their images, in one folder or in `train`, `valid` and `test`. Corners count pixels from 1 and are inside the
box: xmin 1 and xmax 640 is the whole width of an image of 640.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyformer.data.files.coco import SIDES, Annotated, Bad, check_lists
from anyformer.data.files.image_folders import SUFFIXES, folders_in
from anyformer.errors import UserError
from anyformer.safe_files import short

ANNOTATIONS, IMAGES, LISTS = "Annotations", "JPEGImages", "ImageSets/Main"
MOST_BYTES = 4 * 2**20  # of one XML file


def voc_files(folder: Path) -> dict[str, list[Path]]:
    """The XML files of a folder by split, {} if they are not annotations; all are for training if no split is named."""
    if is_set(folder):
        return by_lists(folder)
    sides = {SIDES[inner.name.lower()]: boxed(inner) for inner in folders_in(folder) if inner.name.lower() in SIDES}
    sides = {side: files for side, files in sides.items() if files}
    if "train" in sides:
        return sides
    own = boxed(folder)
    return {"train": own} if own else {}


def is_set(root: Path) -> bool:
    """Whether a folder has the layout of VOC's own sets."""
    return (root / IMAGES).is_dir() and bool(boxed(root / ANNOTATIONS))


def boxed(folder: Path) -> list[Path]:
    """The XML files of a folder, if the first one is an image annotation."""
    files = sorted(folder.glob("*.xml"))
    if not files or files[0].stat().st_size > MOST_BYTES:
        return []
    head = files[0].read_bytes()
    return files if b"<annotation" in head and b"</annotation>" in head else []


def by_lists(root: Path) -> dict[str, list[Path]]:
    """The files of a set by the names in its lists; the joint list of training and validation is redundant."""
    files = {path.stem: path for path in boxed(root / ANNOTATIONS)}
    sides: dict[str, list[Path]] = {}
    for name, side in (("train", "train"), ("val", "valid"), ("test", "test")):
        listed = root / LISTS / f"{name}.txt"
        if listed.is_file():
            names = [line.split()[0] for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()]
            sides[side] = [files[name] for name in names if name in files]
    return sides if sides.get("train") else {"train": list(files.values())}


def read_voc(files: Iterable[Path], labels: tuple[str, ...] | None = None, *, bad: Bad = "error") -> Annotated:
    """The images and objects of XML files; errors are reported as for COCO's JSON."""
    lists: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": []}
    named = [(path, parse(path)) for path in files]
    labels = labels_of(named) if labels is None else labels
    folder = named[0][0].parent
    images = folder.parent / IMAGES if (folder.parent / IMAGES).is_dir() else folder
    lists["categories"] = [{"id": number, "name": label} for number, label in enumerate(labels)]
    for path, node in named:
        lists["images"].append({"id": path.name, "file_name": image_of(path, images, node), **size_of(node)})
        for number, thing in enumerate(node.findall("object"), 1):
            where = f"{number} of {path.name}"
            lists["annotations"].append({
                "id": where, "image_id": path.name, "category_id": labels.index(name_of(thing, where)),
                "bbox": box_of(thing, where), "iscrowd": thing.findtext("difficult", "0").strip() == "1",
            })  # fmt: skip
    return replace(check_lists(lists, folder, images, bad=bad), files=tuple(path for path, _ in named))


def voc_labels(files: Iterable[Path]) -> tuple[str, ...]:
    """The classes of all objects in XML files, sorted by name."""
    return labels_of((path, parse(path)) for path in files)


def labels_of(named: Iterable[tuple[Path, ET.Element]]) -> tuple[str, ...]:
    return tuple(sorted({name_of(thing, path.name) for path, node in named for thing in node.findall("object")}))


def parse(path: Path) -> ET.Element:
    """The XML tree of one file; entities, which could expand without limit, are rejected, in UTF-16 too."""
    data = path.read_bytes() if path.stat().st_size <= MOST_BYTES else b"<!DOCTYPE"
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data or b"\0" in data:
        raise UserError("a document type, UTF-16 or more than 4 MB", where=path.name,
                        fix="write plain Pascal VOC annotations in UTF-8")  # fmt: skip
    try:
        node = ET.fromstring(data)
    except (ET.ParseError, ValueError) as error:
        raise UserError(f"not XML ({short(error)})", where=path.name, fix="write it again") from None
    if node.tag != "annotation":
        raise UserError(f"its root is <{node.tag[:40]}>", where=path.name, fix="expected <annotation>")
    return node


def name_of(thing: ET.Element, where: str) -> str:
    name = (thing.findtext("name") or "").strip()
    if not name:
        raise UserError("an object has no name", where=where, fix="expected <name>cat</name>")
    return name


def size_of(node: ET.Element) -> dict[str, int]:
    """The image size in a file; 0, which some tools write, counts as missing."""
    found = {name: (node.findtext(f"size/{name}") or "").strip() for name in ("width", "height")}
    return {name: int(text) for name, text in found.items() if text.isdecimal() and int(text)}


def image_of(path: Path, images: Path, node: ET.Element) -> str:
    """The name of the image: as in the file, or the file's own stem with an image suffix."""
    named = Path((node.findtext("filename") or "").replace("\\", "/")).name
    endings = [written for suffix in sorted(SUFFIXES) for written in (suffix, suffix.upper())]
    likely = [*([named] if named else []), *(f"{path.stem}{ending}" for ending in endings)]
    return next((name for name in likely if (images / name).is_file()), named or f"{path.stem}.jpg")


def box_of(thing: ET.Element, where: str) -> list[float]:
    """Left, top, width and height in pixels from 0; reversed corners give a box of size 0."""
    try:
        left, top, right, low = (float(thing.findtext(f"bndbox/{name}") or "") for name in CORNERS)
    except ValueError:
        raise UserError("its box is not complete", where=where,
                        fix="expected <bndbox> with numbers xmin, ymin, xmax and ymax") from None  # fmt: skip
    sized = right > left and low > top
    return [left - 1, top - 1, *((right - left + 1, low - top + 1) if sized else (0.0, 0.0))]


CORNERS = ("xmin", "ymin", "xmax", "ymax")

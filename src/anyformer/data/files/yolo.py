"""Object annotations in YOLO format: one text file per image, and a YAML file that names classes and folders.

A line is `class x y width height`, centre and size relative to the image; a polygon `class x y x y ...` is replaced by
its bounding box. The text files are beside the images, or in a folder `labels` if the images are in `images`. An image
without a text file has no objects.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from anyformer.data.files.coco import SIDES, Annotated, Bad, check_lists
from anyformer.data.files.image_folders import SUFFIXES
from anyformer.data.images.decoding import Unreadable, looked_at
from anyformer.errors import UserError
from anyformer.safe_files import short

MOST_BYTES = 2**20  # of the YAML file
EXPECTED = "expected lines: class x y width height, as shares of the image"


def is_yolo(path: Path) -> bool:
    """Whether a file is YAML that names classes and a training folder; checked without parsing."""
    if path.suffix.lower() not in (".yaml", ".yml") or not path.is_file() or path.stat().st_size > MOST_BYTES:
        return False
    lines = path.read_bytes().splitlines()
    return all(any(line.startswith(word) for line in lines) for word in (b"names:", b"train:"))


def yolo_sides(path: Path) -> dict[str, list[Path]]:
    """The images of each split in the file; a split whose folder is missing is left out, except train."""
    facts = settings(path)
    found = {SIDES[name]: images_of(path, facts, name) for name in ("train", "val", "test") if facts.get(name)}
    if not found.get("train"):
        raise UserError(f"no image is in the folder of train ({facts.get('train')})", where=path.name,
                        fix="give the folder of the images, relative to this file")  # fmt: skip
    return {side: files for side, files in found.items() if files}


def read_yolo(path: Path, images: list[Path], *, bad: Bad = "error") -> Annotated:
    """The images of one split and their objects."""
    labels, root = names_of(path, settings(path)), path.parent
    lists: dict[str, list[Any]] = {"images": [], "annotations": [], "categories": []}
    lists["categories"] = [{"id": number, "name": label} for number, label in enumerate(labels)]
    read = [path]
    for image in images:
        name, text = os.path.relpath(image, root), text_of(image)
        lists["images"].append({"id": name, "file_name": name})
        if not text.is_file():
            continue
        read.append(text)
        wide, high = size_of(image)
        for number, line in enumerate(text.read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                where = f"{number} of {text.name}"
                kind, box = parse_line(line, where, len(labels))
                lists["annotations"].append({
                    "id": where, "image_id": name, "category_id": kind,
                    "bbox": [box[0] * wide, box[1] * high, box[2] * wide, box[3] * high],
                })  # fmt: skip
    for number, entry in enumerate(lists["annotations"]):  # files in two folders may have the same name
        entry["id"] = f"{entry['id']} ({number})"
    return replace(check_lists(lists, path, root, bad=bad), files=tuple(read))


def settings(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"not YAML ({short(error)})", where=path.name, fix="write it again") from None
    if not isinstance(found, dict):
        raise UserError("holds no settings", where=path.name, fix="expected names: and train:")
    return found


def names_of(path: Path, facts: dict[str, Any]) -> tuple[str, ...]:
    """The classes in order of index, from a list or from {0: ...}."""
    names = facts.get("names")
    if isinstance(names, dict) and sorted(names) == list(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list) or not names or not all(isinstance(name, str | int) for name in names):
        raise UserError("names is not a list of classes", where=path.name, fix="write names: [cat, dog]")
    return tuple(map(str, names))


def images_of(path: Path, facts: dict[str, Any], side: str) -> list[Path]:
    """The images of the folders, or of the image lists, of a split."""
    said = facts[side] if isinstance(facts[side], list) else [facts[side]]
    above = Path(str(facts["path"])) if facts.get("path") else Path()
    found: list[Path] = []
    for each in map(Path, map(str, said)):
        plain = Path(*(part for part in each.parts if part != ".."))  # Roboflow writes ../train/images beside train/
        tried = [path.parent / above / each, path.parent / each, path.parent / plain]
        place = next((one for one in tried if one.exists()), None)
        if place is not None and place.is_dir():
            found += sorted(one for one in place.rglob("*") if one.suffix.lower() in SUFFIXES)
        elif place is not None and place.suffix == ".txt":
            lines = [line.strip() for line in place.read_text(encoding="utf-8").splitlines()]
            found += [next((one for one in (place.parent / line, path.parent / line) if one.is_file()), Path(line))
                      for line in lines if line]  # fmt: skip
    return found


def text_of(image: Path) -> Path:
    """The text file of an image: in the folder `labels` matching the last `images` in its path, else beside it."""
    parts = list(image.parts)
    if "images" in parts[:-1]:
        last = len(parts) - 2 - parts[:-1][::-1].index("images")
        return Path(*parts[:last], "labels", *parts[last + 1 :]).with_suffix(".txt")
    return image.with_suffix(".txt")


def size_of(image: Path) -> tuple[int, int]:
    try:
        wide, high, _ = looked_at(image, Path())
    except Unreadable as error:
        raise UserError(f"cannot be read ({error})", where=image.name, fix="repair it, or take it out") from None
    return wide, high


def parse_line(line: str, where: str, classes: int) -> tuple[int, list[float]]:
    """Class and left, top, width, height relative to the image, of a box or of a polygon's bounding box."""
    try:
        kind, *numbers = line.split()
        values = [float(number) for number in numbers]
        number = int(kind)
    except ValueError:
        raise UserError(f"is {line.strip()[:60]!r}", where=where, fix=EXPECTED) from None
    polygon = len(values) > 5 and len(values) % 2 == 0
    if not (polygon or len(values) in (4, 5)) or not all(map(math.isfinite, values)):
        raise UserError(f"is {line.strip()[:60]!r}", where=where, fix=EXPECTED)
    if not 0 <= number < classes:
        raise UserError(f"class {number} is not among the {classes} names", where=where, fix="count classes from 0")
    if polygon:
        left, right, top, low = min(values[::2]), max(values[::2]), min(values[1::2]), max(values[1::2])
        return number, [left, top, right - left, low - top]
    x, y, wide, high = values[:4]  # a fifth is a detector's confidence
    return number, [x - wide / 2, y - high / 2, wide, high]

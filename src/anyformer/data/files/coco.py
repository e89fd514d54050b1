"""Object annotations in COCO's JSON format: read, and checked before training.

The file has `images` (id, file_name, width, height), `annotations` (id, image_id, category_id, bbox) and `categories`
(id, name); a bbox is left, top, width, height in pixels.
"""

from __future__ import annotations

import json
import math
import mmap
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyformer.data.images.decoding import Unreadable, looked_at
from anyformer.errors import UserError, did_you_mean
from anyformer.safe_files import short

SIDES = {"train": "train", "training": "train", "valid": "valid", "val": "valid", "validation": "valid", "test": "test"}
PARTS = ("images", "annotations", "categories")
SLACK = 1.0  # pixels by which a box may exceed its image: rounding errors, clipped on reading
EXPECTED = "expected [left, top, width, height] in pixels"


@dataclass
class Picture:
    """One image and its objects: `boxes` (n,4) left, top, width, height in pixels, `kinds` (n,) class indices."""

    id: Any
    name: str
    path: Path | bytes  # a file, or its contents
    wide: int = 0
    high: int = 0
    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4)))
    kinds: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    crowd: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # a group of objects, not used as a target


@dataclass
class Annotated:
    """A file of annotated images; `labels[k]` names class k, ordered by category id."""

    file: Path
    labels: tuple[str, ...]
    pictures: list[Picture]
    skipped: dict[str, int] = field(default_factory=dict)  # reason to the number of annotations left out
    first: dict[str, str] = field(default_factory=dict)  # reason to the place of the first
    files: tuple[Path, ...] = ()  # the files read, if not just `file`

    @property
    def notes(self) -> list[str]:
        """Notes for the user before training."""
        counts = np.bincount(np.concatenate([p.kinds for p in self.pictures]), minlength=len(self.labels))
        empty = sum(not len(picture.kinds) for picture in self.pictures)
        found = [f"{self.file.name}: {len(self.pictures):,} images, {int(counts.sum()):,} objects of "
                 f"{len(self.labels)} classes"]  # fmt: skip
        if empty:
            found.append(f"{empty:,} images hold no object; they teach where nothing is")
        unused = [label for label, count in zip(self.labels, counts, strict=True) if not count]
        if unused:
            found.append(f"no object is of class {', '.join(unused[:5])}{', ...' * (len(unused) > 5)}")
        for reason, count in self.skipped.items():
            found.append(f"skipped {count:,} annotations: {reason} (first: {self.first[reason]})")
        return found


Bad = Literal["skip", "error"]


def read_coco(file: str | Path, images: str | Path | None = None, *, bad: Bad = "error") -> Annotated:
    """The images and objects of a JSON file, or of a folder that has one; `images` is the image folder.

    An error in the file as a whole is raised. A single unusable annotation (no size, outside its image) is an error
    too, or is left out and counted with `bad="skip"`.
    """
    path = annotation_file(Path(file))
    return check_lists(load_lists(path), path, None if images is None else Path(images), bad=bad)


def check_lists(data: dict[str, list[Any]], path: Path, folder: Path | None, *, bad: Bad) -> Annotated:
    """COCO's three lists, from any source, as images with objects to learn."""
    labels, number = categories(data["categories"], path)
    pictures = pictures_of(data["images"], path, folder)
    found = Annotated(path, labels, list(pictures.values()))
    kept: dict[Any, list[tuple[list[float], int, bool]]] = {key: [] for key in pictures}
    raw = [
        check_annotation(entry, place(path, at, entry), pictures, number)
        for at, entry in enumerate(data["annotations"])
    ]
    once((entry["id"] for entry in data["annotations"] if "id" in entry), path, "annotation id")
    sizes_of_all(found)
    whole_file([(box, pictures[key]) for key, box, _, _ in raw], path)
    for at, (key, box, kind, crowd) in enumerate(raw):
        reason = unusable(box, pictures[key])
        if reason is None:
            kept[key].append((clip_box(box, pictures[key]), kind, crowd))
            continue
        where = place(path, at, data["annotations"][at])
        if bad == "error":
            raise UserError(f"{reason}: bbox {box} in {pictures[key].name}", where=where,
                            fix=f"{EXPECTED}, or data.bad=skip")  # fmt: skip
        found.skipped[reason] = found.skipped.get(reason, 0) + 1
        found.first.setdefault(reason, where)
    for key, objects in kept.items():
        picture = pictures[key]
        picture.boxes = np.array([box for box, _, _ in objects], np.float64).reshape(-1, 4)
        picture.kinds = np.array([kind for _, kind, _ in objects], np.int64)
        picture.crowd = np.array([crowd for _, _, crowd in objects], bool)
    if not any(len(picture.kinds) for picture in found.pictures):
        raise UserError("no image holds an object", where=path.name, fix="give annotations to learn from")
    return found


# ---------------------------------------------------------------- the file


def annotation_file(path: Path) -> Path:
    """The file itself, or the only JSON file of a folder (or of its folder `annotations`)."""
    if path.is_file():
        return path
    if not path.exists():
        raise UserError("no such file or folder", where=str(path), fix="give COCO's json, or a folder that holds one")
    files = annotation_files(path)
    if "train" not in files:
        found = json_files(path)
        names = ", ".join(str(each.relative_to(path)) for each in found[:4]) or "none"
        raise UserError(f"the folder should hold one json file of annotations, and holds {names}", where=str(path),
                        fix="give the file itself")  # fmt: skip
    return files["train"]


def annotation_files(folder: Path) -> dict[str, Path]:
    """COCO's JSON files of a folder by split: a single one is for training; of several, the name of each gives its
    split.

    Layouts: `annotations/instances_train2017.json`, `train/_annotations.coco.json`, or one json beside the images.
    """
    found = [path for path in json_files(folder) if is_coco(path)]
    if len(found) == 1:
        return {"train": found[0]}
    instances = [path for path in found if path.name.startswith("instances")]  # beside keypoints of the same images
    sides: dict[str, list[Path]] = {}
    for path in instances or found:
        words = set(re.split(r"[^a-z]+", f"{path.parent.name if path.parent != folder else ''} {path.stem}".lower()))
        for side in sorted({SIDES[word] for word in words if word in SIDES}):
            sides.setdefault(side, []).append(path)
    return {side: paths[0] for side, paths in sides.items() if len(paths) == 1}


def json_files(folder: Path) -> list[Path]:
    """The JSON files of a folder and its sub-folders, its own first."""
    return sorted(folder.glob("*.json")) + sorted(folder.glob("*/*.json"))


def is_coco(path: Path) -> bool:
    """Whether a file is a JSON object with images, annotations with boxes, and categories; found without parsing."""
    if path.suffix.lower() != ".json" or not path.is_file() or not path.stat().st_size:
        return False
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            starts = data[:64].lstrip().startswith(b"{")
            return starts and all(data.find(f'"{name}"'.encode()) >= 0 for name in (*PARTS, "bbox"))
    except OSError:  # an unreadable file cannot be meant
        return False


def load_lists(path: Path) -> dict[str, list[Any]]:
    """The three lists of the file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"not JSON ({short(error)})", where=path.name, fix="write it again") from None
    if not isinstance(data, dict) or not all(isinstance(data.get(part), list) for part in PARTS):
        lost = [part for part in PARTS if not isinstance(data, dict) or not isinstance(data.get(part), list)]
        raise UserError(f"the list {lost[0]!r} is missing", where=path.name,
                        fix="give COCO's json: images, annotations, categories")  # fmt: skip
    for part in PARTS:
        for at, entry in enumerate(data[part]):
            if not isinstance(entry, dict):
                raise UserError(f"{part}[{at}] is not an object", where=path.name, fix='expected {"id": ..., ...}')
    if not data["images"] or not data["categories"]:
        raise UserError(f"{'images' if not data['images'] else 'categories'} is empty", where=path.name,
                        fix="give COCO's json of annotated images")  # fmt: skip
    return {part: data[part] for part in PARTS}


def once(ids: Iterable[Any], path: Path, what: str) -> None:
    """Reject a duplicate id."""
    seen: set[Any] = set()
    for one in ids:
        if isinstance(one, list | dict):
            raise UserError(f"{what} {str(one)[:40]} is not a number", where=path.name, fix="number them")
        if one in seen:
            raise UserError(f"{what} {one!r} comes twice", where=path.name, fix="number them without repeats")
        seen.add(one)


def categories(entries: list[dict[str, Any]], path: Path) -> tuple[tuple[str, ...], dict[Any, int]]:
    """The class names ordered by id, and the class index of each id."""
    for at, entry in enumerate(entries):
        if not isinstance(entry.get("id"), int) or not isinstance(entry.get("name"), str):
            raise UserError(f"categories[{at}] has no whole number as id or no name", where=path.name,
                            fix='expected {"id": 1, "name": "cat"}')  # fmt: skip
    once((entry["id"] for entry in entries), path, "category id")
    once((entry["name"] for entry in entries), path, "category name")
    ordered = sorted(entries, key=lambda entry: entry["id"])
    return tuple(entry["name"] for entry in ordered), {entry["id"]: k for k, entry in enumerate(ordered)}


def pictures_of(entries: list[dict[str, Any]], path: Path, images: Path | None) -> dict[Any, Picture]:
    """Every image by its id; missing image files are all reported."""
    for at, entry in enumerate(entries):
        if "id" not in entry or not isinstance(entry.get("file_name"), str) or not entry["file_name"]:
            raise UserError(f"images[{at}] has no id or no file_name", where=path.name,
                            fix='expected {"id": 1, "file_name": "a.jpg"}')  # fmt: skip
    once((entry["id"] for entry in entries), path, "image id")
    names = [entry["file_name"] for entry in entries]
    around = [path.parent, path.parent / "images", path.parent.parent / "images", path.parent.parent]
    if path.parent.name == "annotations":  # beside it one folder of images per split: train2017, images/val
        around += [inner for above in (path.parent.parent, around[2]) for inner in sorted(above.glob("*/"))]
    tried = around if images is None else [images]
    folder = max(tried, key=lambda each: sum((each / name).is_file() for name in names[:50]))
    lost = [name for name in names if not (folder / name).is_file()]
    if lost:
        more = f" and {len(lost) - 1:,} more of {len(names):,}" if len(lost) > 1 else ""
        raise UserError(f"the image {lost[0][-80:]!r}{more} is not in {folder}", where=path.name,
                        fix="give the folder of the images", details=[f"missing: {name}" for name in lost])  # fmt: skip
    made = {}
    for entry in entries:
        wide, high = entry.get("width"), entry.get("height")
        sized = all(isinstance(side, int) and side > 0 for side in (wide, high))
        made[entry["id"]] = Picture(entry["id"], entry["file_name"], folder / entry["file_name"],
                                    *((int(wide), int(high)) if sized else (0, 0)))  # type: ignore[arg-type]  # fmt: skip
    return made


def sizes_of_all(found: Annotated) -> None:
    """The size of every image, from its header; one that cannot be read, or has another size, is reported."""
    for picture in found.pictures:
        try:
            wide, high, _ = looked_at(picture.path, Path())
        except Unreadable as error:
            raise UserError(f"cannot be read ({error})", where=picture.name, fix="repair it, or take it out"
                            ) from None  # fmt: skip
        if picture.wide and (picture.wide, picture.high) != (wide, high):
            turned = " (turned by the camera's mark)" if (picture.high, picture.wide) == (wide, high) else ""
            what = f"the image is {wide} x {high}{turned}, its annotation says {picture.wide} x {picture.high}"
            raise UserError(what, where=picture.name, fix="annotate the image as it is shown")
        picture.wide, picture.high = wide, high


# ---------------------------------------------------------------- annotations


def place(path: Path, at: int, entry: dict[str, Any]) -> str:
    """The location of an annotation, for messages."""
    return f"{path.name} annotation {entry['id'] if 'id' in entry else f'number {at + 1}'}"


def check_annotation(
    entry: dict[str, Any], where: str, pictures: dict[Any, Picture], number: dict[Any, int]
) -> tuple[Any, list[float], int, bool]:
    """Image id, box, class and crowd flag of one complete annotation."""
    for name, known in (("image_id", pictures), ("category_id", number)):
        value = entry.get(name)
        if isinstance(value, list | dict) or value not in known:
            fix = did_you_mean(str(value), [str(key) for key in list(known)[:1000]])
            raise UserError(f"{name} {str(value)[:40]} is in no {name.removesuffix('_id')}", where=where, fix=fix)
    box = entry.get("bbox")
    if not isinstance(box, list) or len(box) != 4 or not all(plain_number(side) for side in box):
        raise UserError(f"bbox is {str(box)[:60]}", where=where, fix=EXPECTED)
    return entry["image_id"], [float(side) for side in box], number[entry["category_id"]], bool(entry.get("iscrowd"))


def plain_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def whole_file(found: list[tuple[list[float], Picture]], path: Path) -> None:
    """Reject a file whose boxes are all in another format: relative, or as corners."""
    if not found:
        return
    boxes = np.array([box for box, _ in found])
    sides = np.array([(picture.wide, picture.high) for _, picture in found])
    if boxes.max() <= 1.0 + 1e-6 and sides.min() > 2:
        raise UserError(f"all boxes are below 1 (the first is {found[0][0]}): shares of the image, not pixels",
                        where=path.name, fix=EXPECTED)  # fmt: skip
    over = (boxes[:, :2] + boxes[:, 2:] > sides + SLACK).any(1)
    corner = (boxes[:, 2:] > boxes[:, :2]).all(1) & (boxes[:, 2:] <= sides + SLACK).all(1) & (boxes >= -SLACK).all(1)
    if over.mean() > 0.2 and corner.all():
        raise UserError(
            f"{int(over.sum()):,} of {len(boxes):,} boxes stand out of their image, and all would fit as corners "
            "(left, top, right, bottom)", where=path.name, fix=EXPECTED,
        )  # fmt: skip


def unusable(box: list[float], picture: Picture) -> str | None:
    """Why a box is unusable, or None."""
    left, top, wide, high = box
    if wide <= 0 or high <= 0:
        return "a box without size"
    outside = left < -SLACK or top < -SLACK or left >= picture.wide or top >= picture.high
    if (
        outside
        or left + wide <= 0
        or top + high <= 0
        or left + wide > picture.wide + SLACK
        or top + high > picture.high + SLACK
    ):
        return f"a box outside its image of {picture.wide} x {picture.high}"
    return None


def clip_box(box: list[float], picture: Picture) -> list[float]:
    """Clip a box to its image."""
    left, top = max(0.0, box[0]), max(0.0, box[1])
    right, low = min(float(picture.wide), box[0] + box[2]), min(float(picture.high), box[1] + box[3])
    return [left, top, right - left, low - top]

"""From annotated images to training, validation and test examples: read, checked, decoded once and logged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.amounts import megabytes
from anyformer.data.columns.image import Image
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.datasets.detection import DetectionExamples, Square, put_pictures, usual_square
from anyformer.data.files.annotated import FORMATS, open_annotated
from anyformer.data.files.coco import Annotated, Picture
from anyformer.data.gather import paths_of
from anyformer.data.images.decode_all import picture_steps
from anyformer.data.images.preprocessing import FILE as IMAGES
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.prepared import DataRequest, Prepared, StartModelConstraints
from anyformer.data.preprocess import FILE, Preprocess, sizes
from anyformer.data.settings import Data
from anyformer.data.splits import FREE, SIDES, TEST, TRAIN, VALID
from anyformer.data.store import fingerprint
from anyformer.data.targets import Things
from anyformer.errors import UserError, did_you_mean
from anyformer.log import Log, keep_lines
from anyformer.safe_files import digest_of_all

KIND = "detection"
TRUTH = ("boxes", "kinds", "crowd")


def prepare_detection(request: DataRequest, *, task: str) -> Prepared:
    """Prepare annotated images for training; --valid and --test name further files."""
    settings, cache, paths = request.settings, request.cache, paths_of(request.source)
    notes, log = keep_lines(request.log)
    if paths is None or len(paths) != 1:
        raise UserError(f"{0 if paths is None else len(paths)} files are given to detect in", where=f"--task {task}",
                        fix=f"give {FORMATS}")  # fmt: skip
    if request.why:
        log(f"task     {task}: {request.why}")
    there = cache.exists()
    try:
        found, side = gather_pictures(paths[0], settings, log)
        side = sides(side, settings, request.seed)
        return assemble_detection(found, side, settings, task, cache, request.given, notes, log)
    except BaseException:
        if not there:  # leave nothing behind after an error
            shutil.rmtree(cache, ignore_errors=True)
        raise


def gather_pictures(path: Path, settings: Data, log: Log) -> tuple[Annotated, np.ndarray]:
    """All images, those of validation and test after the others, and the split that each image's file gives."""
    source = open_annotated(path)
    found = source.sides["train"](bad=settings.bad)
    side = [np.full(len(found.pictures), FREE, np.int8)]
    for note in found.notes:
        log(f"file     {note}")
    for number, name, files in ((VALID, "valid", settings.split.valid_file), (TEST, "test", settings.split.test_file)):
        given = [open_annotated(Path(file)).sides["train"] for file in files or ()]
        for read in given or ([source.sides[name]] if name in source.sides else []):
            other = relabel(read(bad=settings.bad), found.labels)
            for note in other.notes:
                log(f"file     {note}")
            found.pictures += other.pictures
            side.append(np.full(len(other.pictures), number, np.int8))
    return found, np.concatenate(side)


def relabel(other: Annotated, labels: tuple[str, ...]) -> Annotated:
    """Another file with its class indices mapped to those of the first."""
    strange = [label for label in other.labels if label not in labels]
    if strange:
        raise UserError(f"the class {strange[0]!r} is not in the training file", where=other.file.name,
                        fix=did_you_mean(strange[0], labels))  # fmt: skip
    number = np.array([labels.index(label) for label in other.labels])
    return replace(other, labels=labels, pictures=[replace(p, kinds=number[p.kinds]) for p in other.pictures])


def sides(side: np.ndarray, settings: Data, seed: int) -> np.ndarray:
    """The split of every image: as its file says, else drawn at random."""
    side, free = side.copy(), np.flatnonzero(side == FREE)
    order = np.random.default_rng(seed).permutation(free)
    start = 0
    for number, share, files in ((VALID, settings.split.valid, settings.split.valid_file),
                                 (TEST, settings.split.test, settings.split.test_file)):  # fmt: skip
        said = bool(files) or bool((side == number).any())  # by an option, or by the folder itself
        count = 0 if said else round(share * len(free))
        count = max(count, 1) if share and not said and len(free) >= 4 else count
        side[order[start : start + count]] = number
        start += count
    side[order[start:]] = TRAIN
    return side


def assemble_detection(
    found: Annotated, side: np.ndarray, settings: Data, task: str, cache: Path, given: StartModelConstraints,
    notes: list[str], log: Log,
) -> Prepared:  # fmt: skip
    counts = [int((side == number).sum()) for number in range(len(SIDES))]
    if not counts[TRAIN]:
        raise UserError("no image is left to train on", where=found.file.name, fix="hold out fewer")
    trained = [picture for picture, at in zip(found.pictures, side, strict=True) if at == TRAIN]
    kinds = np.concatenate([picture.kinds[~picture.crowd] for picture in trained])
    if not len(kinds):
        raise UserError("no image to train on holds an object", where=found.file.name, fix="give more images")
    square = Square(settings.images.size or usual_square(found.pictures, slow=given.slow))
    steps = picture_steps(square.size, square.channels)
    if given.images is not None and given.images.mean is not None and len(given.images.mean) == square.channels:
        steps = replace(steps, mean=given.images.mean, std=given.images.std, scale=given.images.scale)
    arrays = Arrays.new(cache)
    put_pictures(found, square, arrays)
    arrays.put("side", side)
    put_truth(found, arrays)
    target = Things(
        names=("objects",), labels=found.labels, most=max(int((~p.crowd).sum()) for p in trained),
        counts=tuple(np.bincount(kinds, minlength=len(found.labels)).tolist()),
    )  # fmt: skip
    column = Image(name="image", size=square.size, channels=square.channels)
    preprocess = Preprocess(task=task, columns=(column,), target=target)
    log(f"task     {task}: {len(target.labels)} classes ({', '.join(target.labels[:6])}"
         f"{', ...' * (len(target.labels) > 6)}), at most {target.most} objects an image")  # fmt: skip
    flip = settings.images.flip is not False  # boxes are mirrored too, and do not depend on left and right
    varied = [f"edges moved by up to {settings.images.crop:.0%} (--set data.images.crop=0)"] * bool(
        settings.images.crop
    )
    varied += ["flipped left-right (--set data.images.flip=false)"] * flip
    training = f"; while training {', '.join(varied)}" if varied else ""
    why = " (on a CPU larger ones leave too few steps; --set data.images.size=512)"
    smaller = given.slow and not settings.images.size and square.size < usual_square(found.pictures)
    size = f"{square.size} x {square.size} pixels{why * smaller}"
    log(f"image    fitted into {size}, padding masked{training}")
    log("split    " + ", ".join(f"{name} {n:,}" for name, n in zip(SIDES, counts, strict=True) if n) + " images")
    read = found.files or (found.file,)
    facts = {
        "task": task, "target": ["objects"], "rows": len(found.pictures), "used": len(found.pictures),
        "skipped": found.skipped, "skipped_first": found.first, "columns": {"image": {"kind": "image", "missing": 0}},
        "split": dict(zip(SIDES, counts, strict=True)), "labels": dict(zip(target.labels, target.counts, strict=True)),
        "sources": [{"name": found.file.name, "path": str(found.file), "rows": len(found.pictures), "notes": [],
                     "bytes": sum(path.stat().st_size for path in read), "sha256": digest_of_all(read),
                     "unit": "image", "first": 1}],
        "sizes": sizes(preprocess), "fingerprint": fingerprint(arrays, preprocess, None),
    }  # fmt: skip
    preprocess.save(arrays.folder / FILE)
    steps.save(arrays.folder)
    pictures = [[str(p.id), p.name, str(p.path), p.wide, p.high] for p in found.pictures]
    arrays.close({"kind": KIND, "file": str(found.file), "pictures": pictures, "flip": flip,
                  "crop": settings.images.crop, "facts": facts, "notes": notes})  # fmt: skip
    log(f"disk     {megabytes(arrays.bytes)}")
    return opened_detection(arrays)


def put_truth(found: Annotated, arrays: Arrays) -> None:
    """The annotated objects, in pixels of their images: the targets in evaluation."""
    for name in TRUTH:
        arrays.put(f"true_{name}", np.concatenate([getattr(picture, name) for picture in found.pictures]))
    arrays.put("true_starts", np.cumsum([0, *(len(picture.kinds) for picture in found.pictures)]))


def opened_detection(arrays: Arrays) -> Prepared:
    """Prepared data from a sealed folder of annotated images."""
    facts: dict[str, Any] = arrays.facts
    preprocess = Preprocess.read(arrays.folder / FILE)
    steps = ImageSteps.read(arrays.folder / IMAGES)
    assert isinstance(preprocess.target, Things)
    starts = arrays["true_starts"]
    pictures = []
    for row, (key, name, path, wide, high) in enumerate(facts["pictures"]):
        own = [np.array(arrays[f"true_{part}"][starts[row] : starts[row + 1]]) for part in TRUTH]
        pictures.append(Picture(key, name, Path(path), wide, high, *own))
    found = Annotated(Path(facts["file"]), preprocess.target.labels, pictures)
    made = [DetectionExamples(arrays, found, np.flatnonzero(arrays["side"] == number), steps=steps, flip=facts["flip"],
                              crop=facts.get("crop", 0.0))  # folders of earlier versions have no crop
            for number in range(len(SIDES))]  # fmt: skip
    train, valid, test = (side if len(side) else None for side in made)
    assert train is not None
    return Prepared(
        preprocess.task, train, valid, test, preprocess, images=steps, facts=facts["facts"], notes=list(facts["notes"])
    )

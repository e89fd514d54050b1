"""A detector's answers: objects beside those annotated, and those of new images as rows of a table."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from anyformer.data.columns.image import Image
from anyformer.data.datasets.arrays import MemoryArrays
from anyformer.data.datasets.detection import DetectionExamples, Square, detection_examples, put_objects
from anyformer.data.files.coco import Annotated, Picture, annotation_file, read_coco
from anyformer.data.frame import Frame
from anyformer.data.images.decoding import Unreadable, looked_at
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.average_precision import Objects, found_objects, true_objects
from anyformer.inference.predict import OnBadRows, by_row, given, is_files, report_bad
from anyformer.objectives import Batch, Objective
from anyformer.safe_write import scratch_folder

if TYPE_CHECKING:
    from anyformer.inference.predictor import Predictor

logger = logging.getLogger("anyformer")
SURE = 0.5  # an object is named in predictions from this probability on
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def judged(
    examples: DetectionExamples, passes: Iterable[tuple[Batch, Any]], objective: Objective, labels: Sequence[str]
) -> Answers:
    """What was found in each image beside what is annotated there, in pixels of the image."""
    truth, found, losses = [], [], []
    for batch, out in passes:
        losses.append(objective.row_losses(out, batch).float().cpu().numpy())
        logits, boxes = out.logits.float().cpu().numpy(), out.boxes.float().cpu().numpy()
        for row, scores, places in zip(batch.rows.tolist(), logits, boxes, strict=True):
            picture = examples.picture(row)
            found.append(found_objects(scores, places, picture.wide, picture.high))
            truth.append(true_objects(picture.boxes, picture.kinds, picture.crowd))
    return Answers(
        "detect", truth, found, labels=list(labels), losses=np.concatenate(losses) if losses else None,
        examples=examples,
    )  # fmt: skip


def detected_objects(
    predictor: Predictor, source: Any, *, batch: int = 32, on_bad_rows: OnBadRows = "error", say: Any = None
) -> tuple[list[str], list[list[dict[str, Any]] | None]]:
    """The names of images and the objects in each, the surest first; None for one that is skipped."""
    values = image_values(source)
    found, bad = objects_in(predictor, values, batch=batch)
    report_bad({row: error.inside(f"rows[{row}]") for row, error in bad.items()}, on_bad_rows, say or logger.warning)
    return [str(value) if isinstance(value, Path) else f"rows[{row}]" for row, value in enumerate(values)], found


def image_values(source: Any) -> list[Any]:
    """Images as they are given: files, those of folders or of an annotated json, or images in a list."""
    given = given_images(source)
    if not is_files(given):
        return given
    found: list[Any] = []
    for path in given:
        if path.suffix == ".json":
            found += [picture.path for picture in read_coco(path, bad="skip").pictures]
        elif path.is_dir():
            found += sorted(each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES)
        else:
            found.append(path)
    if not found:
        raise UserError("there are no images", where=", ".join(map(str, given))[:100], fix="give images or a folder")
    return found


def given_images(source: Any) -> list[Any]:
    """One entry an image: a table has a column of them, an array one along its first axis."""
    rows = given(source)
    if isinstance(rows, Mapping):
        rows = by_row(rows)
    if isinstance(rows, Frame):
        rows = rows.table.to_pylist()
    rows = list(rows)
    if not rows:
        raise UserError("there are no rows", where="rows", fix="give at least one")
    return rows


def objects_in(
    predictor: Predictor, values: Sequence[Any], *, batch: int
) -> tuple[list[list[dict[str, Any]] | None], dict[int, UserError]]:
    """The objects of each image, and why others cannot be read; no more than a batch is in memory at once."""
    found: list[list[dict[str, Any]] | None] = [None] * len(values)
    bad: dict[int, UserError] = {}
    for start in range(0, len(values), batch):
        decoded = []
        for row in range(start, min(start + batch, len(values))):
            try:
                decoded.append((row, *decoded_picture(predictor, row, values[row])))
            except UserError as error:
                bad[row] = error
        if decoded:
            rows, pictures, pixels = zip(*decoded, strict=True)
            for row, objects in zip(rows, detected(predictor, list(pictures), np.stack(pixels)), strict=True):
                found[row] = objects
    return found, bad


def decoded_picture(predictor: Predictor, row: int, value: Any) -> tuple[Picture, np.ndarray]:
    """One image with its own size, and its pixels in the detector's square."""
    (column,) = image_column(predictor)
    if isinstance(value, Mapping):
        if column.name not in value:
            raise UserError(f"the column {column.name!r} is missing", fix="give an image")
        value = value[column.name]
    if value is None:
        raise UserError("the row is empty", where=column.name, fix="give an image")
    source = column.parse_value(value)
    try:
        wide, high, _ = looked_at(source, Path())
        picture = Picture(row, str(row), source if isinstance(source, bytes) else Path(source), wide, high)
        return picture, square_of(predictor).pixels(picture)
    except Unreadable as error:
        named = f"{str(source)[-120:]!r}" if isinstance(source, str) else "the image"
        raise UserError(f"{named} cannot be read ({error})", where=column.name, fix="give another image") from None


def image_column(predictor: Predictor) -> list[Image]:
    assert predictor.preprocess is not None
    return [column for column in predictor.preprocess.columns or () if isinstance(column, Image)]


def square_of(predictor: Predictor) -> Square:
    (column,) = image_column(predictor)
    assert column.size is not None
    return Square(column.size)


@torch.no_grad()
def detected(predictor: Predictor, pictures: list[Picture], pixels: np.ndarray) -> list[list[dict[str, Any]]]:
    """What a trained detector is sure of in each image, whose pixels (B,C,S,S) are decoded."""
    assert predictor.preprocess is not None
    labels = tuple(predictor.preprocess.labels or ())
    annotated, arrays = Annotated(Path("images"), labels, pictures), MemoryArrays()
    arrays.put("pixels", pixels)
    put_objects(annotated, square_of(predictor), arrays)
    examples = DetectionExamples(arrays, annotated, np.arange(len(pictures)), steps=predictor.images, flip=False)
    given = examples.batch(np.arange(len(pictures))).to(predictor.device)
    out = predictor.model.eval()(*given.inputs, **given.named)
    logits, boxes = out.logits.float().cpu().numpy(), out.boxes.float().cpu().numpy()
    return [object_rows(found_objects(scores, places, picture.wide, picture.high), labels)
            for picture, scores, places in zip(pictures, logits, boxes, strict=True)]  # fmt: skip


def object_table(
    predictor: Predictor, files: Sequence[Path], *, batch: int, on_bad_rows: OnBadRows = "error", say: Any = None
) -> Any:
    """What a detector finds in new images, one row an object."""
    import pyarrow as pa

    names, found = detected_objects(predictor, list(files), batch=batch, on_bad_rows=on_bad_rows, say=say)
    rows = [{"image": name} | row for name, objects in zip(names, found, strict=True) for row in objects or ()]
    columns = ("image", "label", "score", "left", "top", "width", "height")
    return pa.table({name: [row[name] for row in rows] for name in columns})


def object_rows(objects: Objects, labels: Sequence[str], sure: float = SURE) -> list[dict[str, Any]]:
    """The objects of an image, the surest first: label, score, left, top, width, height in pixels."""
    assert objects.scores is not None
    rows: list[dict[str, Any]] = []
    for at in np.argsort(-objects.scores, kind="stable"):
        if objects.scores[at] < sure:
            break
        left, top, right, low = (float(side) for side in objects.boxes[at])
        rows.append({
            "label": labels[int(objects.classes[at])], "score": round(float(objects.scores[at]), 4),
            "left": round(left, 2), "top": round(top, 2), "width": round(right - left, 2),
            "height": round(low - top, 2),
        })  # fmt: skip
    return rows


def judged_file(predictor: Predictor, path: Path, judge: Any) -> Answers:
    """A trained detector's answers on annotated images, whose classes must be among its own."""
    from anyformer.data.datasets.prepare_detection import relabelled

    labels = tuple(predictor.preprocess.labels or ()) if predictor.preprocess else ()
    found = relabelled(read_coco(annotation_file(path), bad="skip"), labels)
    with scratch_folder() as folder:
        (column,) = image_column(predictor)
        annotated = Annotated(Path("images"), labels, found.pictures)
        examples = detection_examples(annotated, folder, size=column.size, steps=predictor.images, flip=False)
        return judge(predictor.model, examples)

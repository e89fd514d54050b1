"""A detector's answers: objects beside those annotated, and those of new images as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from anyformer.data.columns import Image
from anyformer.data.detection import Annotated, Picture, annotation_file, read_coco
from anyformer.data.detection_rows import DetectionExamples, detection_examples
from anyformer.data.picture_decoding import Unreadable, looked_at
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.average_precision import Objects, found_objects, true_objects
from anyformer.objectives import Batch, Objective
from anyformer.outputs import scratch_folder

if TYPE_CHECKING:
    from anyformer.predictor import Predictor

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


def new_images(paths: Sequence[Path]) -> list[Picture]:
    """Images to look at: files, those of folders, or those of an annotated file."""
    names: list[Path] = []
    for path in paths:
        if path.suffix == ".json":
            return read_coco(path, bad="skip").pictures
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        names += [each for each in below if each == path or each.suffix.lower() in SUFFIXES]
    made: list[Picture] = []
    for name in names:
        try:
            wide, high, _ = looked_at(str(name), Path())
        except Unreadable as error:
            raise UserError(f"cannot be read ({error})", where=str(name), fix="give images") from None
        made.append(Picture(len(made), str(name), name, wide, high))
    if not made:
        raise UserError("there are no images", where=", ".join(map(str, paths))[:100], fix="give images or a folder")
    return made


def examples_of(predictor: Predictor, pictures: list[Picture], folder: Path) -> DetectionExamples:
    """New images as the detector takes them."""
    assert predictor.preprocess is not None
    (column,) = predictor.preprocess.of(Image)
    found = Annotated(Path("images"), tuple(predictor.preprocess.labels or ()), pictures)
    return detection_examples(found, folder, size=column.size, steps=predictor.images, flip=False)


@torch.no_grad()
def detected(predictor: Predictor, pictures: list[Picture], folder: Path, *, batch: int) -> list[Objects]:
    """All that a trained detector says of each image."""
    examples = examples_of(predictor, pictures, folder)
    predictor.model.eval()
    device, found = next(predictor.model.parameters()).device, []
    for start in range(0, len(pictures), batch):
        rows = np.arange(start, min(start + batch, len(pictures)))
        given = examples.batch(rows).to(device)
        out = predictor.model(*given.inputs, **given.named)
        for row, logits, boxes in zip(
            rows, out.logits.float().cpu().numpy(), out.boxes.float().cpu().numpy(), strict=True
        ):
            found.append(found_objects(logits, boxes, pictures[row].wide, pictures[row].high))
    return found


def object_table(predictor: Predictor, files: Sequence[Path], *, batch: int) -> Any:
    """What a detector finds in new images, one row an object."""
    import pyarrow as pa

    pictures = new_images(files)
    with scratch_folder() as folder:
        found = detected(predictor, pictures, folder, batch=batch)
    rows = object_rows(pictures, found, (predictor.preprocess.labels if predictor.preprocess else None) or ())
    names = ("image", "label", "score", "left", "top", "width", "height")
    return pa.table({name: [row[name] for row in rows] for name in names})


def object_rows(
    pictures: Sequence[Picture], found: Sequence[Objects], labels: Sequence[str], sure: float = SURE
) -> list[dict[str, Any]]:
    """One row an object, the surest of each image first: image, label, score, left, top, width, height in pixels."""
    rows: list[dict[str, Any]] = []
    for picture, objects in zip(pictures, found, strict=True):
        assert objects.scores is not None
        for at in np.argsort(-objects.scores, kind="stable"):
            if objects.scores[at] < sure:
                break
            left, top, right, low = (float(side) for side in objects.boxes[at])
            rows.append({
                "image": picture.name, "label": labels[int(objects.classes[at])],
                "score": round(float(objects.scores[at]), 4), "left": round(left, 2), "top": round(top, 2),
                "width": round(right - left, 2), "height": round(low - top, 2),
            })  # fmt: skip
    return rows


def judged_file(predictor: Predictor, path: Path, judge: Any) -> Answers:
    """A trained detector's answers on annotated images, whose classes must be among its own."""
    from anyformer.data.detection_prepare import relabelled

    labels = tuple(predictor.preprocess.labels or ()) if predictor.preprocess else ()
    found = relabelled(read_coco(annotation_file(path), bad="skip"), labels)
    with scratch_folder() as folder:
        return judge(predictor.model, examples_of(predictor, found.pictures, folder))

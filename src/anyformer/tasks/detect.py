"""Detection: the objects of an image, each with a class and a bounding box."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from anyformer.core.model import Seq2Seq
from anyformer.data.columns.image import Image
from anyformer.data.datasets.arrays import MemoryArrays
from anyformer.data.datasets.detection import DetectionExamples, Square, detection_examples, put_objects
from anyformer.data.datasets.prepare_detection import prepare_detection, relabel
from anyformer.data.examples import Examples
from anyformer.data.files.annotated import open_annotated
from anyformer.data.files.coco import Annotated, Picture, read_coco
from anyformer.data.frame import Frame
from anyformer.data.given_rows import OnBadRows, by_row, is_files, report_bad, take_rows
from anyformer.data.images.decoding import Unreadable, looked_at
from anyformer.data.prepared import DataRequest, Prepared
from anyformer.data.recognise import shows_objects
from anyformer.data.settings import Data
from anyformer.data.sizes import Sizes
from anyformer.data.unused import refuse_columns
from anyformer.embeds import Maps, Queries
from anyformer.errors import UserError
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.average_precision import Objects, found_objects, true_objects
from anyformer.evaluation.baseline_rows import RawRows
from anyformer.evaluation.facts import short
from anyformer.evaluation.metrics import object_metrics
from anyformer.heads import Boxes
from anyformer.log import Log
from anyformer.objectives import Detect as DetectionLoss
from anyformer.safe_files import scratch_folder
from anyformer.slots import Network
from anyformer.spec import fields_of
from anyformer.tasks.base import Task
from anyformer.tasks.habits import TrainingDefaults
from anyformer.tasks.network import unfit
from anyformer.tasks.trained_model import TrainedModel, preprocess_of

if TYPE_CHECKING:
    from anyformer.tasks.evaluator import Evaluator

logger = logging.getLogger("anyformer")
SMALL_SIDE = 128  # side in pixels up to which an image counts as small
CROWDED = 3  # minimum anchors per object of the fullest image, since objects are unevenly spread
SURE = 0.5  # probability from which on predictions include an object
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


class DetectTask(Task):
    """Object detection with a set of queries (DETR), boxes in pixels of the image."""

    name = "detect"
    title = "detection"
    verb = "finds objects"
    objective = DetectionLoss
    needs = ("scipy",)

    # ------------------------------------------------------------ data

    def recognise(self, paths: Sequence[Path] | None, settings: Data) -> str:
        return shows_objects(paths, settings)

    def prepare(self, request: DataRequest) -> Prepared:
        refuse_columns(request.settings, "images with objects")
        return prepare_detection(request, task=self.name)

    # ------------------------------------------------------------ the model

    def default_preset(self, sizes: Sizes, *, gpu: bool) -> str:
        """Cells of 8 pixels for small images, of 32 for photos: a few hundred tokens either way."""
        return "detr-mini" if sizes.image is not None and longest_side(sizes.image) > SMALL_SIDE else "detr-mini-tiny"

    def fit_network(self, spec: Network, name: str, sizes: Sizes) -> Network:
        """An image encoder and a decoder with enough queries for the data's objects."""
        if not isinstance(spec, Seq2Seq) or not isinstance(spec.encoder.embed, Maps):
            raise unfit(name, "has no decoder that asks an image for its objects", "detr-mini")
        cells, asked = spec.encoder.embed, spec.decoder.embed
        if not isinstance(asked, Queries):
            raise unfit(name, "has no decoder that asks an image for its objects", "detr-mini")
        colours = {"colours": sizes.channels} if "colours" in fields_of(type(cells.backbone)) else {}
        cells = cells.replace(size=sizes.image or cells.size, backbone=cells.backbone.replace(**colours))
        if asked.anchors is None:
            asked = asked.replace(count=asked.count if sizes.objects <= asked.count else 2 * sizes.objects)
        elif CROWDED * sizes.objects > asked.count:
            side = math.ceil(math.sqrt(CROWDED * sizes.objects))
            asked = asked.replace(count=side * side, anchors=(side, side))
        return spec.replace(
            encoder=spec.encoder.replace(embed=cells), decoder=spec.decoder.replace(embed=asked),
            head=Boxes(classes=sizes.classes, anchors=asked.anchors),
        )  # fmt: skip

    def habit(self, sizes: Sizes, *, start: bool) -> TrainingDefaults:
        if start:
            return TrainingDefaults(
                epochs=50, batch_size=4, lr=1e-4, weight_decay=1e-4, gpu_batch_size=16, gpu_lr=1e-4, layer_lr_decay=0.9
            )
        return TrainingDefaults(epochs=300, batch_size=8, lr=5e-4, weight_decay=1e-4, gpu_batch_size=32, gpu_lr=5e-4)

    def next_command(self, run: Path) -> str:
        return f"anyformer predict {run} images/ -o out.csv"

    # ------------------------------------------------------------ evaluation

    def answer(
        self, evaluator: Evaluator, model: nn.Module, examples: Examples, rows: np.ndarray, *, decode: bool
    ) -> Answers:
        """The objects detected in each image and the annotated ones."""
        assert isinstance(examples, DetectionExamples)
        truth, found, losses = [], [], []
        for batch, out in evaluator.passes(model, examples, rows):
            losses.append(evaluator.objective.row_losses(out, batch).float().cpu().numpy())
            logits, boxes = out.logits.float().cpu().numpy(), out.boxes.float().cpu().numpy()
            for row, scores, places in zip(batch.rows.tolist(), logits, boxes, strict=True):
                picture = examples.picture(row)
                found.append(found_objects(scores, places, picture.wide, picture.high))
                truth.append(true_objects(picture.boxes, picture.kinds, picture.crowd))
        labels = list(evaluator.preprocess.labels or ())
        return Answers(
            self.name, truth, found, labels=labels, losses=np.concatenate(losses) if losses else None,
            examples=examples,
        )  # fmt: skip

    def compute_metrics(self, answers: Answers) -> dict[str, float]:
        return object_metrics(answers)

    def main_metric(self, *, multi: bool = False, labels: Sequence[str] = ()) -> str:
        return "ap"

    def evaluate_files(
        self, evaluator: Evaluator, predictor: TrainedModel, files: Sequence[Path], log: Log
    ) -> Answers | None:
        if len(files) > 1:
            raise UserError("objects are evaluated in one file at a time", where=files[1].name, fix="leave it out")
        return evaluate_file(predictor, files[0], evaluator)

    # ------------------------------------------------------------ baselines

    def truth(self, examples: Examples) -> Any:
        return [true_objects(picture.boxes, picture.kinds, picture.crowd) for picture in pictures_of(examples)]

    def raw_rows(self, examples: Examples) -> RawRows:
        sizes = [(picture.wide, picture.high) for picture in pictures_of(examples)]
        return RawRows(sizes=np.array(sizes).reshape(-1, 2))

    def trivial_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows
    ) -> tuple[str, dict[str, float]]:
        """One object in every image: the most frequent class, with its mean relative box."""
        kind = usual_class(truth)
        named = answers.labels[kind] if answers.labels and kind is not None else kind
        name = f"one '{named}' at its mean place in every image"
        if kind is None or not len(answers.truth) or train.sizes is None or test.sizes is None:
            return name, {}
        places = [image.of(kind).boxes / np.tile(size, 2) for image, size in zip(truth, train.sizes, strict=True)]
        box = np.concatenate(places).mean(0)
        said = [Objects((box * np.tile(size, 2))[None], np.array([kind]), np.ones(1)) for size in test.sizes]
        return name, self.metrics(Answers(self.name, answers.truth, said, labels=answers.labels))

    def strong_baseline(
        self, truth: Any, answers: Answers, train: RawRows, test: RawRows, *, seed: int = 0
    ) -> tuple[str, dict[str, float]]:
        return "no simple learner finds boxes", {}

    # ------------------------------------------------------------ the report

    def facts(self, answers: Answers) -> dict[str, Any]:
        return {"rows": len(answers.truth), "objects": sum(len(image.boxes) for image in answers.truth)}

    def describe(self, answers: Answers, row: int) -> dict[str, Any]:
        """The classes of the annotated objects, and of those detected with confidence."""
        said = answers.predicted[row]
        sure = [kind for kind, score in zip(said.classes, said.scores, strict=True) if score >= SURE]
        labels = answers.labels or []
        sides = [", ".join(labels[int(c)] if int(c) < len(labels) else str(int(c)) for c in part) or "(nothing)"
                 for part in (answers.truth[row].classes, sure)]  # fmt: skip
        return {"truth": short(sides[0], 120), "predicted": short(sides[1], 120)}

    # ------------------------------------------------------------ new images

    def predict(
        self, predictor: TrainedModel, source: Any, *, batch_size: int, on_bad_rows: OnBadRows
    ) -> list[Any] | None:
        return detected_objects(predictor, source, batch_size=batch_size, on_bad_rows=on_bad_rows)[1]

    def prediction_table(
        self,
        predictor: TrainedModel,
        files: Sequence[Path],
        settings: Data,
        *,
        batch_size: int,
        on_bad_rows: OnBadRows,
        log: Log,
    ) -> Any | None:
        """One row per object."""
        return object_table(predictor, files, batch_size=batch_size, on_bad_rows=on_bad_rows, log=log)

    def answer_requests(self, rows: Sequence[Any], predictor: TrainedModel, *, batch_size: int) -> list[Any] | None:
        """The objects of each image, the most confident first."""
        found, bad = objects_in(predictor, rows, batch_size=batch_size)
        return [bad.get(at, {"objects": objects}) for at, objects in enumerate(found)]


def pictures_of(examples: Examples) -> list[Picture]:
    """The annotated images of some examples."""
    assert isinstance(examples, DetectionExamples)
    return [examples.picture(row) for row in range(len(examples))]


def longest_side(image: int | tuple[int, int]) -> int:
    return image if isinstance(image, int) else max(image)


def usual_class(truth: Sequence[Objects]) -> int | None:
    """The most frequent class of objects; None if there are no objects."""
    kinds = np.concatenate([np.asarray(image.classes, np.int64) for image in truth]) if len(truth) else np.array([])
    return int(np.bincount(kinds).argmax()) if len(kinds) else None


# ---------------------------------------------------------------- objects of new images


def detected_objects(
    predictor: TrainedModel,
    source: Any,
    *,
    batch_size: int = 32,
    on_bad_rows: OnBadRows = "error",
    log: Log | None = None,
) -> tuple[list[str], list[list[dict[str, Any]] | None]]:
    """The names of images and the objects in each, the most confident first; None for an image that is skipped."""
    values = image_values(source)
    found, bad = objects_in(predictor, values, batch_size=batch_size)
    report_bad({row: error.inside(f"rows[{row}]") for row, error in bad.items()}, on_bad_rows, log or logger.warning)
    return [str(value) if isinstance(value, Path) else f"rows[{row}]" for row, value in enumerate(values)], found


def image_values(source: Any) -> list[Any]:
    """The images given: files, those of folders or of an annotation json, or images in a list."""
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
        raise UserError("no images given", where=", ".join(map(str, given))[:100], fix="give images or a folder")
    return found


def given_images(source: Any) -> list[Any]:
    """One entry per image: from a table's image column, or along the first axis of an array."""
    rows = take_rows(source)
    if isinstance(rows, Mapping):
        rows = by_row(rows)
    if isinstance(rows, Frame):
        rows = rows.table.to_pylist()
    rows = list(rows)
    if not rows:
        raise UserError("no rows given", where="rows", fix="give at least one")
    return rows


def objects_in(
    predictor: TrainedModel, values: Sequence[Any], *, batch_size: int
) -> tuple[list[list[dict[str, Any]] | None], dict[int, UserError]]:
    """The objects of each image, and the errors of unreadable ones; no more than a batch is in memory at once."""
    found: list[list[dict[str, Any]] | None] = [None] * len(values)
    bad: dict[int, UserError] = {}
    for start in range(0, len(values), batch_size):
        decoded = []
        for row in range(start, min(start + batch_size, len(values))):
            try:
                decoded.append((row, *decoded_picture(predictor, row, values[row])))
            except UserError as error:
                bad[row] = error
        if decoded:
            rows, pictures, pixels = zip(*decoded, strict=True)
            for row, objects in zip(rows, detected(predictor, list(pictures), np.stack(pixels)), strict=True):
                found[row] = objects
    return found, bad


def decoded_picture(predictor: TrainedModel, row: int, value: Any) -> tuple[Picture, np.ndarray]:
    """One image with its original size, and its pixels resized to the detector's square."""
    column = image_column(predictor)
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


def image_column(predictor: TrainedModel) -> Image:
    """The single input column of a detector."""
    (column,) = preprocess_of(predictor).columns or ()
    return cast(Image, column)


def square_of(predictor: TrainedModel) -> Square:
    column = image_column(predictor)
    assert column.size is not None
    return Square(column.size)


@torch.no_grad()
def detected(predictor: TrainedModel, pictures: list[Picture], pixels: np.ndarray) -> list[list[dict[str, Any]]]:
    """The objects detected with confidence in each image, whose pixels (B,C,S,S) are decoded."""
    labels = tuple(preprocess_of(predictor).labels or ())
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
    predictor: TrainedModel,
    files: Sequence[Path],
    *,
    batch_size: int,
    on_bad_rows: OnBadRows = "error",
    log: Log | None = None,
) -> Any:
    """The objects detected in new images, one row per object."""
    import pyarrow as pa

    names, found = detected_objects(predictor, list(files), batch_size=batch_size, on_bad_rows=on_bad_rows, log=log)
    rows = [{"image": name} | row for name, objects in zip(names, found, strict=True) for row in objects or ()]
    columns = ("image", "label", "score", "left", "top", "width", "height")
    return pa.table({name: [row[name] for row in rows] for name in columns})


def object_rows(objects: Objects, labels: Sequence[str], sure: float = SURE) -> list[dict[str, Any]]:
    """The objects of an image, the most confident first: label, score, left, top, width, height in pixels."""
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


def evaluate_file(predictor: TrainedModel, path: Path, evaluator: Any) -> Answers:
    """A detector's predictions on annotated images, whose classes must be among its own.

    Of a folder with several splits, the test split is used.
    """
    labels = tuple(preprocess_of(predictor).labels or ())
    sides = open_annotated(path).sides
    side = next(name for name in ("test", "valid", "train") if name in sides)
    found = relabel(sides[side](bad="skip"), labels)
    with scratch_folder() as folder:
        column = image_column(predictor)
        annotated = Annotated(Path("images"), labels, found.pictures)
        examples = detection_examples(annotated, folder, size=column.size, steps=predictor.images, flip=False)
        return evaluator(predictor.model, examples)

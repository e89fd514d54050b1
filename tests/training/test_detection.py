"""Detection from a file of annotations to a trained model: split, trained, judged, asked, fine-tuned."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import anyformer
from anyformer import UserError, preset, replace_in
from anyformer.data.datasets.detection import move_edges
from anyformer.data.datasets.prepare_detection import prepare_detection
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.prepared import DataRequest, StartModelConstraints
from anyformer.data.reopen import reopen
from anyformer.data.settings import Data, ImageSettings, Split
from anyformer.data.sizes import Sizes
from anyformer.evaluation.answers import Answers
from anyformer.evaluation.average_precision import Objects
from anyformer.inference.evaluate import evaluate_run
from anyformer.inference.prediction_files import predict_files
from anyformer.objectives import Batch, Detect
from anyformer.tasks.detect import object_rows
from anyformer.training.duration import Plan
from anyformer.training.master_weights import MasterWeights
from anyformer.training.optim import AdamW
from anyformer.training.settings import Training
from anyformer.training.step import TrainingEngine
from tests.tasks_by_name import evaluation_facts, fitted, main_metric, metrics

SIDE = 32
FEW = {"training.steps": 2, "training.batch_size": 4, "training.eval_every": 2, "model.encoder.stack.depth": 1}


def bright_box(pixels: np.ndarray) -> tuple[float, float, float, float]:
    """Left, top, right and low edge of what is bright."""
    rows, columns = np.nonzero(pixels[0] > 200)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


@pytest.mark.parametrize("seed", range(20))
def test_moved_edges_take_the_objects_with_them(seed: int) -> None:
    wide, high = 96, 64  # below it the square is padding
    picture = np.full((3, 96, 96), 0, np.uint8)
    picture[:, :high, :wide] = 100
    picture[:, 20:50, 30:70] = 255
    truth = np.array([[1, 50 / wide, 35 / high, 40 / wide, 30 / high]], np.float32)
    moved = picture.copy()
    sides, objects = move_edges(moved, np.array([wide, high]), truth, 0.2, np.random.default_rng(seed))
    (_, x, y, w, h), (columns, rows) = objects[0], sides
    said = ((x - w / 2) * columns, (y - h / 2) * rows, (x + w / 2) * columns, (y + h / 2) * rows)
    assert np.abs(np.array(said) - bright_box(moved)).max() <= 1.5  # pixels are whole, edges are not
    assert np.abs(np.array(bright_box(picture)) - bright_box(moved)).max() > 1.5  # control: the picture did move
    assert moved[:, :rows, :columns].min() >= 100 and not moved[:, rows:].any() and not moved[:, :, columns:].any()


def test_an_object_that_a_window_leaves_out_is_not_learned() -> None:
    picture, objects = np.zeros((3, 100, 100), np.uint8), np.array([[0, 0.02, 0.5, 0.04, 0.2], [1, 0.5, 0.5, 0.2, 0.2]])
    cut = [
        move_edges(picture.copy(), np.array([100, 100]), objects, 0.3, np.random.default_rng(k))[1] for k in range(20)
    ]
    assert {len(each) for each in cut} == {1, 2} and all(1 in each[:, 0] for each in cut)


def annotated(folder: Path, count: int = 12, names: tuple[str, ...] = ("bright", "dark"), start: int = 0) -> Path:
    """Images with one or two squares, bright or dark; every fourth image is empty."""
    (folder / "images").mkdir(parents=True)
    images: list[Any] = []
    objects: list[Any] = []
    for k in range(start, start + count):
        rng = np.random.default_rng(k)
        pixels = np.full((SIDE, SIDE, 3), 128, np.uint8)
        for place in range(0 if k % 4 == 3 else 1 + k % 2):
            left, top, kind = (
                int(rng.integers(0, 20)),
                int(rng.integers(16 * place, 16 * place + 5)),
                int(rng.integers(2)),
            )
            pixels[top : top + 10, left : left + 10] = 250 if kind == 0 else 5
            objects.append({"id": len(objects), "image_id": k, "category_id": kind, "bbox": [left, top, 10, 10]})
        Image.fromarray(pixels).save(folder / "images" / f"{k}.png")
        images.append({"id": k, "file_name": f"{k}.png", "width": SIDE, "height": SIDE})
    data = {"images": images, "annotations": objects, "categories": [{"id": k, "name": n} for k, n in enumerate(names)]}
    path = folder / "coco.json"
    path.write_text(json.dumps(data))
    return path


def prepared(path: Path, cache: Path, **settings: Any) -> Any:
    said: list[str] = []
    made = prepare_detection(DataRequest([path], Data(**settings), cache, log=said.append), task="detect")
    return made, said


def test_images_are_split_and_open_again_to_the_same_bits(tmp_path: Path) -> None:
    made, said = prepared(annotated(tmp_path / "a", 20), tmp_path / "cache", split=Split(valid=0.2, test=0.1))
    assert [len(side) for side in (made.train, made.valid, made.test)] == [14, 4, 2]
    sides = [set(side.rows.tolist()) for side in (made.train, made.valid, made.test)]
    assert set.union(*sides) == set(range(20)) and sum(map(len, sides)) == 20
    assert made.facts["sizes"]["classes"] == 2 and made.facts["sizes"]["objects"] == 2
    assert any("detect: 2 classes (bright, dark)" in line for line in said)
    assert any("5 images hold no object" in line for line in said)
    again = reopen(tmp_path / "cache")
    assert again is not None and again.preprocess == made.preprocess and again.images == made.images
    one, two = made.train.batch([0, 3]), again.train.batch([0, 3])  # type: ignore[attr-defined]
    assert one.inputs[0].equal(two.inputs[0]) and one.targets.equal(two.targets)
    assert again.train.picture(0).boxes.tolist() == made.train.picture(0).boxes.tolist()  # type: ignore[attr-defined]


def test_files_may_say_what_validates_and_tests(tmp_path: Path) -> None:
    train = annotated(tmp_path / "a", 6)
    valid = annotated(tmp_path / "b", 4, names=("dark", "bright"), start=50)  # the same classes, other numbers
    test = annotated(tmp_path / "c", 3, start=80)
    made, _ = prepared(train, tmp_path / "x", split=Split(valid_file=(str(valid),), test_file=(str(test),)))
    assert [len(side) for side in (made.train, made.valid, made.test)] == [6, 4, 3]
    own = json.loads(valid.read_text())["annotations"][0]
    assert made.valid.picture(0).kinds[0] == 1 - own["category_id"]
    strange = annotated(tmp_path / "d", 3, names=("bright", "blue"), start=90)
    with pytest.raises(UserError, match="'blue' is not in the training file"):
        prepared(train, tmp_path / "y", split=Split(valid_file=(str(strange),)))
    assert not (tmp_path / "y").exists()  # a mistake leaves nothing behind


def test_sizes_flips_and_colours_are_as_asked(tmp_path: Path) -> None:
    path = annotated(tmp_path / "a", 8)
    made, _ = prepared(path, tmp_path / "x", images=ImageSettings(size=48, flip=False))
    assert made.train.batch([0]).inputs[0].shape == (1, 3, 48, 48) and not made.train.flip
    steps = ImageSteps.from_dict({"image_processor_type": "DetrImageProcessor", "size": {"shortest_edge": 800}})
    assert steps.mean == (0.485, 0.456, 0.406) and steps.to_dict()["size"] == {"shortest_edge": 800}
    given = StartModelConstraints(images=steps)
    other = prepare_detection(DataRequest([path], Data(), tmp_path / "y", given=given), task="detect")
    assert other.images is not None and other.images.mean == steps.mean
    with pytest.raises(UserError, match="2 files are given"):
        prepare_detection(DataRequest([path, path], Data(), tmp_path / "z"), task="detect")


def test_a_run_from_the_file_to_the_boxes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = annotated(tmp_path / "a")
    run = anyformer.train(
        path, "detect", out=tmp_path / "run", device="cpu", settings=FEW, progress="silent", quiet=True
    )
    judged = json.loads((run.path / "evaluation.json").read_text())
    assert judged["main"] == "ap" and set(judged["metrics"]["test"]) >= {"ap", "ap50", "ap75", "loss"}
    assert "Detection from coco.json" in run.report.read_text(encoding="utf-8")
    scores = evaluate_run(run.path, [path], device="cpu", batch_size=8, log=lambda _: None)
    assert scores["rows"] == 12 and 0 <= scores["ap"] <= 1
    for given in ([tmp_path / "a" / "images"], [path], [tmp_path / "a" / "images" / "0.png"]):
        text = predict_files(run.path, given, None, device="cpu", batch_size=4, as_json=False, log=lambda _: None)
        assert text is not None and text.startswith("image,label,score,left,top,width,height\n")
    with pytest.raises(UserError, match="no images given"):
        predict_files(run.path, [tmp_path / "run" / "data"], None, device="cpu", batch_size=4, as_json=True, log=print)
    # The same network goes on with other classes: only its class scores start anew.
    other = annotated(tmp_path / "b", names=("bright", "dark", "none of both"))
    with caplog.at_level(logging.INFO, "anyformer"):
        anyformer.train(other, "detect", start=run.path, out=tmp_path / "again", device="cpu", progress="silent",
                        settings={"training.steps": 1})  # fmt: skip
    assert "2 tensors start anew (head.out.weight, head.out.bias)" in caplog.text


def test_presets_that_do_not_detect_are_refused_and_queries_are_enough() -> None:
    sizes = Sizes(parts=["image"], image=48, channels=1, classes=7, objects=15)
    made: Any = fitted(preset("detr-r50-tiny"), "detr-r50-tiny", "detect", sizes)
    assert made.head.classes == 7 and made.encoder.embed.size == 48 and made.encoder.embed.backbone.colours == 1
    assert made.decoder.embed.count == 20
    crowded: Any = fitted(
        preset("detr-r50-tiny"), "detr-r50-tiny", "detect", Sizes(parts=["image"], classes=2, objects=33)
    )
    assert crowded.decoder.embed.count == 66
    for name in ("vit-mini", "translator-mini"):
        with pytest.raises(UserError, match="asks an image for its objects"):
            fitted(preset(name), name, "detect", sizes)


def test_metrics_and_facts_of_objects() -> None:
    box = np.array([[0.0, 0.0, 10.0, 10.0]])
    truth = [Objects(box, np.array([1])), Objects(np.zeros((0, 4)), np.zeros(0, np.int64))]
    found = [Objects(box, np.array([1]), np.array([0.9])), Objects(box, np.array([0]), np.array([0.2]))]
    answers = Answers("detect", truth, found, labels=["cat", "dog"], losses=np.array([0.5, 0.1]))
    assert main_metric("detect") == "ap" and metrics(answers) == {"ap": 1.0, "ap50": 1.0, "ap75": 1.0}
    facts = evaluation_facts(answers)
    assert (
        facts["objects"] == 1 and facts["worst"][0]["truth"] == "dog" and facts["worst"][1]["predicted"] == "(nothing)"
    )
    assert metrics(Answers("detect", truth[1:], found[1:])) == {}


def test_only_sure_objects_are_named_best_first() -> None:
    boxes = np.array([[0.0, 0, 10, 10], [5, 5, 15, 20], [1, 1, 2, 2]])
    rows = object_rows(Objects(boxes, np.array([0, 1, 0]), np.array([0.6, 0.9, 0.3])), ["cat", "dog"])
    assert [row["label"] for row in rows] == ["dog", "cat"]
    assert rows[0] == {"label": "dog", "score": 0.9, "left": 5, "top": 5, "width": 10, "height": 15}


@pytest.mark.parametrize("autocast", [True, False])
def test_anchored_queries_stand_beside_weights_of_another_precision(autocast: bool) -> None:
    """As a GPU trains: tables and products in bf16, what starts the queries and boxes in single precision."""
    model: Any = preset("detr-mini-tiny").build(seed=0)
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[[0, 0.3, 0.3, 0.4, 0.4]], [[2, 0.5, 0.5, 0.9, 0.3]]])
    named = {"source_mask": torch.ones(2, 64, 64, dtype=torch.bool)}
    whole = Detect().loss(model, Batch((pixels,), targets, torch.arange(2), named)).item()
    MasterWeights(model)
    assert model.decoder.embed.table.weight.dtype == torch.bfloat16 != model.decoder.embed.sharpness.dtype
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        given = pixels if autocast else pixels.bfloat16()
        loss = Detect().loss(model, Batch((given,), targets, torch.arange(2), named))
    loss.backward()
    assert abs(loss.item() - whole) < 0.02 * whole
    assert model.decoder.embed.sharpness.grad.abs() > 0


def test_two_images_are_learned_by_heart() -> None:
    """Forty steps nearly halve the loss, whichever CPU rounds; micro-batches give the same step as the whole."""
    spec = replace_in(
        preset("detr-r50-tiny"), {"encoder.stack.depth": 1, "decoder.stack.depth": 2, "decoder.embed.count": 6}
    )
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor(
        [[[0, 0.3, 0.3, 0.4, 0.4], [1, 0.7, 0.7, 0.2, 0.2]], [[2, 0.5, 0.5, 0.9, 0.3], [-100, 0, 0, 0, 0]]]
    )
    batch = Batch((pixels,), targets, torch.arange(2))
    training = Training(batch_size=2, micro_batch_size=2, precision="fp32", optimizer=AdamW(lr=1e-3, weight_decay=0.0))
    engine = TrainingEngine(spec.build(seed=0), Detect(), training, Plan(1000))
    losses = [engine.step(step, [batch]).loss.item() for step in range(40)]
    assert losses[-1] < 0.6 * losses[0]
    parts = [Batch((pixels[k : k + 1],), targets[k : k + 1], torch.tensor([k])) for k in range(2)]
    model = spec.build(seed=0).eval()
    whole = Detect().loss(model, batch)
    assert abs(sum(Detect().loss(model, part) for part in parts) - whole) < 1e-3

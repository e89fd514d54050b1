"""COCO's json: what is read, every mistake named with its file and annotation, batches with masks, mirrored boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anyformer import UserError
from anyformer.data.datasets.detection import DetectionExamples, detection_examples
from anyformer.data.examples import Draw
from anyformer.data.files.annotated import find_annotated
from anyformer.data.files.coco import Annotated, read_coco

SIZES = {1: (40, 30), 2: (20, 40), 3: (32, 32)}  # wide, high; the third image is empty


def whole() -> dict[str, Any]:
    """A right file: ids neither from 0 nor in order, a crowd, an image without objects."""
    return {
        "images": [{"id": k, "file_name": f"{k}.png", "width": w, "height": h} for k, (w, h) in SIZES.items()],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [
            {"id": 11, "image_id": 1, "category_id": 3, "bbox": [4, 6, 10, 12], "iscrowd": 0},
            {"id": 12, "image_id": 1, "category_id": 7, "bbox": [20.5, 0, 19.5, 30]},
            {"id": 13, "image_id": 2, "category_id": 7, "bbox": [0, 10, 20, 20]},
            {"id": 14, "image_id": 2, "category_id": 3, "bbox": [0, 0, 20, 40], "iscrowd": 1},
        ],
    }


def written(folder: Path, data: Any, images: str = "images") -> Path:
    (folder / images).mkdir(parents=True, exist_ok=True)
    for k, (wide, high) in SIZES.items():
        pixels = np.random.default_rng(k).integers(0, 256, (high, wide, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / images / f"{k}.png")
    path = folder / "coco.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


@pytest.mark.quick
@pytest.mark.parametrize("images", ["images", "."])
def test_a_file_and_its_folder_are_read(images: str, tmp_path: Path) -> None:
    path = written(tmp_path, whole(), images)
    for given in (path, tmp_path):
        found = read_coco(given)
        assert found.labels == ("cat", "dog")  # by the ids of the categories
        one, two, three = found.pictures
        assert one.kinds.tolist() == [0, 1] and one.boxes.tolist() == [[4, 6, 10, 12], [20.5, 0, 19.5, 30]]
        assert two.crowd.tolist() == [False, True] and len(three.kinds) == 0
        assert any("1 images hold no object" in note for note in found.notes)
    assert read_coco(path, tmp_path / images).pictures[0].path == tmp_path / images / "1.png"


@pytest.mark.quick
def test_a_set_is_found_where_it_was_unpacked(tmp_path: Path) -> None:
    written(tmp_path / "download" / "set", whole())
    (tmp_path / "README.md").write_text("free")
    found = find_annotated(tmp_path)
    assert found is not None and "COCO" in found.reason and len(found.sides["train"]().pictures) == 3
    written(tmp_path / "another" / "set", whole())
    assert find_annotated(tmp_path) is None  # which of both is not known


def change(path: str, value: Any) -> Any:
    """A mistake: the value at a path of the file, or what a function makes of the file."""

    def apply(data: Any) -> Any:
        *ways, last = path.split(".")
        at = data
        for way in ways:
            at = at[int(way)] if way.isdigit() else at[way]
        at[int(last) if last.isdigit() else last] = value
        return data

    return apply


def scaled(data: Any, corners: bool) -> Any:
    for entry in data["annotations"]:
        wide, high = SIZES[entry["image_id"]]
        x, y, w, h = entry["bbox"]
        entry["bbox"] = [x, y, x + w, y + h] if corners else [x / wide, y / high, w / wide, h / high]
    return data


MISTAKES = {
    "no json": (lambda data: "{", "coco.json: not JSON"),
    "a list": (lambda data: "[]", "coco.json: the list 'images' is missing"),
    "no categories": (
        lambda data: {k: v for k, v in data.items() if k != "categories"},
        "the list 'categories' is missing",
    ),
    "nothing in it": (change("images", []), "coco.json: images is empty"),
    "an odd entry": (change("annotations.1", 3), r"coco.json: annotations\[1\] is not an object"),
    "image twice": (change("images.1.id", 1), "coco.json: image id 1 comes twice"),
    "category twice": (change("categories.1.id", 7), "coco.json: category id 7 comes twice"),
    "name twice": (change("categories.1.name", "dog"), "category name 'dog' comes twice"),
    "annotation twice": (change("annotations.1.id", 11), "coco.json: annotation id 11 comes twice"),
    "no file_name": (change("images.0.file_name", None), r"coco.json: images\[0\] has no id or no file_name"),
    "missing image": (change("images.2.file_name", "lost.png"), "coco.json: the image 'lost.png' is not in"),
    "unknown image": (change("annotations.2.image_id", 9), "coco.json annotation 13: image_id 9 is in no image"),
    "unknown category": (change("annotations.0.category_id", 5), "annotation 11: category_id 5 is in no category"),
    "three numbers": (change("annotations.0.bbox", [1, 2, 3]), "coco.json annotation 11: bbox is"),
    "words": (change("annotations.0.bbox", ["a", 0, 1, 1]), "annotation 11: bbox is"),
    "nan": (change("annotations.0.bbox", [float("nan"), 0, 1, 1]), "annotation 11: bbox is"),
    "no size": (change("annotations.0.bbox", [1, 1, 0, 5]), "annotation 11: a box without size"),
    "negative": (change("annotations.0.bbox", [-9, 1, 12, 5]), "annotation 11: a box outside its image of 40 x 30"),
    "outside": (change("annotations.2.bbox", [5, 5, 30, 5]), "annotation 13: a box outside its image of 20 x 40"),
    "shares": (lambda data: scaled(data, False), "coco.json: all boxes are below 1"),
    "corners": (lambda data: scaled(data, True), "all would fit as corners"),
    "another size": (change("images.0.width", 41), "1.png: the image is 40 x 30, its annotation says 41 x 30"),
    "only empty images": (change("annotations", []), "coco.json: no image holds an object"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_named_with_its_file(name: str, tmp_path: Path) -> None:
    spoil, said = MISTAKES[name]
    path = written(tmp_path, spoil(whole()))
    with pytest.raises(UserError, match=said) as caught:
        read_coco(path)
    assert caught.value.fix and len(str(caught.value)) <= 300


def test_other_mistakes_of_a_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_coco(tmp_path / "nowhere.json")
    path = written(tmp_path, whole())
    (tmp_path / "second.json").write_text(path.read_text())  # which of the two is meant?
    with pytest.raises(UserError, match="should hold one json"):
        read_coco(tmp_path)
    (tmp_path / "images" / "2.png").write_bytes(b"no picture")
    with pytest.raises(UserError, match="2.png: cannot be read"):
        read_coco(path)


def test_single_bad_annotations_can_be_left_out(tmp_path: Path) -> None:
    data = whole()
    data["annotations"] += [
        {"id": 15, "image_id": 3, "category_id": 3, "bbox": [1, 1, 0, 5]},
        {"id": 16, "image_id": 3, "category_id": 3, "bbox": [40, 1, 5, 5]},
        {"id": 17, "image_id": 3, "category_id": 3, "bbox": [30.5, -0.5, 2, 4]},  # rounding: clipped
    ]
    found = read_coco(written(tmp_path, data), bad="skip")
    assert sum(found.skipped.values()) == 2 and "annotation 15" in found.first["a box without size"]
    assert found.pictures[2].boxes.tolist() == [[30.5, 0, 1.5, 3.5]]


# ---------------------------------------------------------------- batches


@pytest.fixture
def examples(tmp_path: Path) -> DetectionExamples:
    return detection_examples(read_coco(written(tmp_path, whole())), tmp_path / "arrays", size=20)


def test_batches_are_padded_with_masks(examples: DetectionExamples) -> None:
    batch = examples.batch([0, 1, 2])
    pixels, mask = batch.inputs[0], batch.named["source_mask"]
    assert pixels.shape == (3, 3, 20, 20) and mask.shape == (3, 20, 20)
    assert [row.any(0).sum().item() for row in mask] == [20, 10, 20]  # columns: 40, 20 and 32 wide
    assert [row.any(1).sum().item() for row in mask] == [15, 20, 20]
    assert not pixels[~mask[:, None].expand_as(pixels)].any() and pixels[mask[:, None].expand_as(pixels)].std() > 0.1
    assert batch.targets.shape == (3, 2, 5)
    assert batch.targets[0, 0].tolist() == pytest.approx([0, 9 / 40, 12 / 30, 10 / 40, 12 / 30])
    assert batch.targets[1, 0].tolist() == pytest.approx([1, 0.5, 0.5, 1, 0.5])
    assert batch.targets[1, 1, 0] == -100 and (batch.targets[2, :, 0] == -100).all()  # the crowd, the empty image
    assert "1.png" in examples.place(0)


def test_mirrored_images_take_their_boxes_along(examples: DetectionExamples) -> None:
    plain = examples.batch([0])
    draws = [Draw(0, epoch) for epoch in range(20)]
    flipped = [examples.batch([0], draw) for draw in draws]
    turned = [not batch.targets.equal(plain.targets) for batch in flipped]
    assert 3 < sum(turned) < 17
    other = flipped[turned.index(True)]
    assert other.targets[0, :, 1].tolist() == pytest.approx((1 - plain.targets[0, :, 1]).tolist())
    assert other.targets[0, :, 2:].equal(plain.targets[0, :, 2:])
    assert other.inputs[0].equal(plain.inputs[0].flip(-1))  # as wide as the square
    narrow = next(
        b for b in (examples.batch([1], draw) for draw in draws) if not b.inputs[0].equal(examples.batch([1]).inputs[0])
    )
    assert narrow.inputs[0][..., :10].equal(examples.batch([1]).inputs[0][..., :10].flip(-1))
    assert not narrow.inputs[0][..., 10:].any()  # padding stays where it was
    again = examples.batch([0], draws[turned.index(True)])
    assert again.inputs[0].equal(other.inputs[0])  # the same draw, the same numbers
    examples.flip = False
    assert all(examples.batch([0], draw).targets.equal(plain.targets) for draw in draws)


def test_all_images_may_be_empty_in_a_batch(examples: DetectionExamples) -> None:
    batch = examples.batch([2])
    assert batch.targets.shape == (1, 1, 5) and batch.targets[0, 0, 0] == -100


def test_no_image_is_stretched(examples: DetectionExamples) -> None:
    assert isinstance(examples.found, Annotated)
    wide, high = examples.arrays["sides"][0]
    assert abs(wide / high - 40 / 30) < 0.05

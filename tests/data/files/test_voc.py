"""Pascal VOC's XML files: the same boxes as COCO's json of the same images, in every layout; mistakes are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import anyformer
from anyformer import UserError
from anyformer.data.files.annotated import find_annotated, open_annotated
from anyformer.data.files.coco import Annotated
from anyformer.data.recognise import shows_objects
from anyformer.data.settings import Data
from anyformer.inference.evaluate import evaluate_run

SIZES = {"a": (40, 30), "b": (20, 40), "c": (32, 32), "d": (24, 24)}  # wide, high
THINGS = {
    "a": [("cat", 5, 7, 14, 18, 0), ("dog", 21, 1, 40, 30, 0)],  # name, xmin, ymin, xmax, ymax, difficult
    "b": [("dog", 1, 11, 20, 30, 0), ("cat", 1, 1, 20, 40, 1)],
    "c": [],
    "d": [("cat", 3, 3, 9, 9, 0), ("cat", 12, 12, 12, 20, 0)],  # the second has no width
}
SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "bccd" / "bccd.tar"


def xml(name: str, *, filename: str | None = None, size: bool = True) -> str:
    wide, high = SIZES[name]
    objects = "".join(
        f"<object><name>{kind}</name><difficult>{hard}</difficult><bndbox><xmin>{x}</xmin><ymin>{y}</ymin>"
        f"<xmax>{right}</xmax><ymax>{low}</ymax></bndbox></object>"
        for kind, x, y, right, low, hard in THINGS[name]
    )
    said = f"<size><width>{wide if size else 0}</width><height>{high if size else 0}</height></size>"
    return f"<annotation><filename>{filename or name + '.png'}</filename>{said}{objects}</annotation>"


def draw(path: Path, name: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    wide, high = SIZES[name]
    pixels = np.random.default_rng(len(name)).integers(0, 256, (high, wide, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path / f"{name}.png")


def a_set(root: Path, **lists: list[str]) -> Path:
    """A set as VOC's own: with lists of names where some are given."""
    (root / "Annotations").mkdir(parents=True)
    for name in SIZES:
        draw(root / "JPEGImages", name)
        (root / "Annotations" / f"{name}.xml").write_text(xml(name))
    for side, names in lists.items():
        (root / "ImageSets" / "Main").mkdir(parents=True, exist_ok=True)
        (root / "ImageSets" / "Main" / f"{side}.txt").write_text("".join(f"{name}\n" for name in names))
    return root


def read(path: Path, side: str = "train") -> Annotated:
    return open_annotated(path).sides[side](bad="skip")


@pytest.mark.quick
def test_corners_from_1_become_boxes_from_0(tmp_path: Path) -> None:
    found = read(a_set(tmp_path / "set"))
    assert found.labels == ("cat", "dog")
    one, two, three, four = found.pictures
    assert [one.name, one.wide, one.high] == ["a.png", 40, 30]
    assert one.boxes.tolist() == [[4, 6, 10, 12], [20, 0, 20, 30]] and one.kinds.tolist() == [0, 1]
    assert two.crowd.tolist() == [False, True] and len(three.kinds) == 0
    assert four.boxes.tolist() == [[2, 2, 7, 7]]
    assert found.skipped == {"a box without size": 1} and "2 of d.xml" in found.first["a box without size"]
    with pytest.raises(UserError, match=r"2 of d\.xml: a box without size"):
        open_annotated(tmp_path / "set").sides["train"](bad="error")


@pytest.mark.quick
@pytest.mark.parametrize("inside", ["", "VOC2012", "VOCdevkit/VOC2007"])
def test_a_set_is_found_where_it_was_unpacked(inside: str, tmp_path: Path) -> None:
    a_set(tmp_path / inside if inside else tmp_path / ".", train=["a", "b"], val=["c", "a"], test=["d"], trainval=["a"])
    (tmp_path / "LICENSE").write_text("free")
    found = find_annotated(tmp_path)
    assert found is not None and "Pascal VOC" in found.reason
    names = {side: [picture.name for picture in read(tmp_path, side).pictures] for side in found.sides}
    assert names == {"train": ["a.png", "b.png"], "valid": ["c.png", "a.png"], "test": ["d.png"]}
    assert all(read(tmp_path, side).labels == ("cat", "dog") for side in names)
    assert "Pascal VOC" in shows_objects([tmp_path], Data())


@pytest.mark.quick
@pytest.mark.parametrize("sides", [["."], ["train", "valid", "test"]])
def test_files_beside_their_images(sides: list[str], tmp_path: Path) -> None:
    for number, name in enumerate(SIZES):
        folder = tmp_path / sides[min(number, len(sides) - 1)]
        draw(folder, name)
        (folder / f"{name}.xml").write_text(xml(name, filename="C:\\old\\place.png", size=False))
    found = find_annotated(tmp_path)
    assert found is not None and {*found.sides} == ({"train"} if sides == ["."] else {*sides})
    first = read(tmp_path).pictures[0]
    assert first.name == "a.png" and (first.wide, first.high) == (40, 30)  # by its own name, of its own size


@pytest.mark.quick
def test_other_folders_are_none(tmp_path: Path) -> None:
    (tmp_path / "poem.xml").write_text("<poem>Roses are red</poem>")
    (tmp_path / "text.txt").write_text("Roses are red")
    assert find_annotated(tmp_path) is None and shows_objects([tmp_path], Data()) == ""
    a_set(tmp_path / "one")
    a_set(tmp_path / "two")
    assert find_annotated(tmp_path) is None  # which of both is not known


HOSTILE = {
    "entities": ('<!DOCTYPE a [<!ENTITY b "bb">]><annotation>&b;</annotation>', "a document type"),
    "not XML": ("<annotation></annotation", "not XML"),
    "another root": ("<notes><annotation></annotation></notes>", "its root is <notes>"),
    "no name": ("<annotation><object></object></annotation>", "no name"),
    "no box": ("<annotation><object><name>cat</name></object></annotation>", "its box is not complete"),
    "no image": ("<annotation><filename>../../x.png</filename></annotation>", r"the image 'x\.png' is not in"),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", HOSTILE)
def test_a_mistake_is_named_with_its_file(name: str, tmp_path: Path) -> None:
    text, said = HOSTILE[name]
    root = a_set(tmp_path / "set")
    (root / "Annotations" / "e.xml").write_text(text)
    with pytest.raises(UserError, match=said) as error:
        read(root)
    assert "e.xml" in str(error.value) or name == "no image"


def test_a_detector_is_trained_and_scored(tmp_path: Path) -> None:
    root = a_set(tmp_path / "set", train=["a", "b", "d"], val=["c", "a"], test=["d"])
    run = anyformer.train(root, "detect", "detr-mini-tiny", out=tmp_path / "run", steps=2, device="cpu", quiet=True)
    facts = run.folder.read_json("data.json")
    assert facts["split"] == {"train": 3, "valid": 2, "test": 1} and facts["labels"] == {"cat": 2, "dog": 2}
    assert "ap50" in run.evaluation["metrics"]["test"]
    found = evaluate_run(run.path, [root], device="cpu", batch_size=8, log=lambda line: None)
    assert found["rows"] == 1 and found["ap50"] == pytest.approx(run.evaluation["metrics"]["test"]["ap50"])  # that test


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data is not here")
def test_blood_cells_as_they_are_published(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(SHARED) as file:
        file.extractall(tmp_path, filter="data")
    found = open_annotated(tmp_path)
    sides = {side: open_annotated(tmp_path).sides[side](bad="skip") for side in found.sides}
    assert {side: len(one.pictures) for side, one in sides.items()} == {"train": 205, "valid": 87, "test": 72}
    counts = sum(np.bincount(picture.kinds, minlength=3) for one in sides.values() for picture in one.pictures)
    assert dict(zip(sides["train"].labels, counts.tolist(), strict=True)) == {"Platelets": 361, "RBC": 4153, "WBC": 372}
    assert sum(sum(one.skipped.values()) for one in sides.values()) == 2  # red cells without an area

"""YOLO's text files: the same boxes as COCO's json of the same images, in every layout; mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

import anyformer
from anyformer import UserError
from anyformer.data.files.annotated import find_annotated, open_annotated
from anyformer.data.files.coco import Annotated
from anyformer.data.recognise import shows_objects
from anyformer.data.settings import Data
from tests.data.files.test_voc import draw

TEXTS = {  # of images of 40 x 30, 20 x 40, 32 x 32 and 24 x 24
    "a": "1 0.225 0.4 0.25 0.4\n0 0.75 0.5 0.5 1.0\n",
    "b": "0 0.0 0.25 1 0.25 1 0.75 0 0.75\n",  # a polygon
    "c": None,
    "d": "1 0.5 0.5 0 0.5\n1 0.25 0.25 0.5 0.5 0.9\n\n",  # the first has no width, the second says how sure it is
}


def a_set(root: Path, layout: str, said: str = "") -> Path:
    for name, text in TEXTS.items():
        side = "valid" if name == "d" else "train"
        if layout == "beside":
            images = labels = root / side
        elif layout == "images first":
            images, labels = root / "images" / side, root / "labels" / side
        else:
            images, labels = root / side / "images", root / side / "labels"
        draw(images, name)
        labels.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (labels / f"{name}.txt").write_text(text)
    place = {"beside": "{}", "images first": "images/{}", "side first": "../{}/images"}[layout]
    sides = "".join(f"{key}: {place.format(side)}\n" for key, side in
                    (("train", "train"), ("val", "valid"), ("test", "test")))  # fmt: skip
    (root / "data.yaml").write_text(f"{sides}nc: 2\n{said or 'names: [dog, cat]'}\n")
    return root


def read(path: Path, side: str = "train", bad: str = "skip") -> Annotated:
    return open_annotated(path).sides[side](bad=bad)


@pytest.mark.quick
@pytest.mark.parametrize("layout", ["beside", "images first", "side first"])
def test_shares_become_pixels(layout: str, tmp_path: Path) -> None:
    root = a_set(tmp_path / "unpacked" / "set", layout)
    for given in (root, root.parent, root / "data.yaml"):
        found = find_annotated(given)
        assert found is not None and [*found.sides] == ["train", "valid"]  # no folder: no test
    found_train = read(root)
    assert found_train.labels == ("dog", "cat")
    one, two, three = found_train.pictures
    assert one.kinds.tolist() == [1, 0] and one.boxes.ravel().tolist() == pytest.approx([4, 6, 10, 12, 20, 0, 20, 30])
    assert two.boxes.tolist() == [[0, 10, 20, 20]] and not len(three.kinds)
    valid = read(root, "valid")
    assert valid.pictures[0].boxes.tolist() == [[0, 0, 12, 12]] and sum(valid.skipped.values()) == 1
    with pytest.raises(UserError, match=r"1 of d\.txt.*a box without size"):
        read(root, "valid", "error")
    assert "YOLO" in shows_objects([root], Data())


MISTAKES = {
    "words": ("train/a.txt", "cat 0.5 0.5 1 1\n", r"1 of a\.txt: is 'cat"),
    "too few numbers": ("train/a.txt", "0 0.5 0.5\n", r"1 of a\.txt: is '0 0.5 0.5'"),
    "no number": ("train/a.txt", "0 0.5 0.5 nan 1\n", r"1 of a\.txt"),
    "another class": ("train/a.txt", "0 0.5 0.5 1 1\n2 0.5 0.5 1 1\n", r"2 of a\.txt: class 2 is not among the 2"),
    "no names": ("data.yaml", "train: train\nnames: 3\n", "names is not a list"),
    "gaps": ("data.yaml", "train: train\nnames: {0: a, 2: b}\n", "names is not a list"),
    "no folder": ("data.yaml", "train: elsewhere\nnames: [a, b]\n", "no image is in the folder of train"),
    "no YAML": ("data.yaml", "train: train\nnames: [a, b\n", "not YAML"),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_file(name: str, tmp_path: Path) -> None:
    file, text, said = MISTAKES[name]
    root = a_set(tmp_path / "set", "beside")
    (root / file).write_text(text)
    with pytest.raises(UserError, match=said):
        read(root)


@pytest.mark.quick
def test_a_yaml_file_of_other_things_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: gpt2\ntrain: yes\n")
    (tmp_path / "text.txt").write_text("Roses are red")
    assert find_annotated(tmp_path) is None and find_annotated(tmp_path / "config.yaml") is None


def test_a_detector_is_trained_and_scored(tmp_path: Path) -> None:
    root = a_set(tmp_path / "set", "side first", "names:\n  0: dog\n  1: cat")
    run = anyformer.train(root, "detect", "detr-mini-tiny", out=tmp_path / "run", steps=2, device="cpu", quiet=True)
    assert run.folder.read_json("data.json")["split"] == {"train": 3, "valid": 1, "test": 0}
    assert "ap50" in run.evaluation["metrics"]["valid"]

"""Malformed folders and IDX files: how each is made, and what `train` is given."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.data.images.bad_images import WHOLE


@dataclass(frozen=True)
class Bad:
    """`make` writes into a folder and gives the paths to train on; `said` stands in the error."""

    name: str
    make: Callable[[Path], list[Path]]
    said: str
    task: str | None = None  # where it cannot be guessed from the files


def idx(shape: tuple[int, ...], *, kind: int = 8, cut: int = 0) -> bytes:
    """An IDX file of zeros."""
    count = 1
    for size in shape:
        count *= size
    data = bytes([0, 0, kind, len(shape)]) + b"".join(struct.pack(">I", size) for size in shape) + bytes(count)
    return data[: len(data) - cut]


def files(**contents: bytes) -> Callable[[Path], list[Path]]:
    """A maker of files, all of them given; `__` in a name is a dash."""

    def make(folder: Path) -> list[Path]:
        paths = [folder / name.replace("__", "-") for name in contents]
        for path, content in zip(paths, contents.values(), strict=True):
            path.write_bytes(content)
        return paths

    return make


def below(*names: str, content: bytes = WHOLE) -> Callable[[Path], list[Path]]:
    """A maker of a folder `photos` with files in it; a name that ends in / is an empty folder."""

    def make(folder: Path) -> list[Path]:
        for name in names:
            path = folder / "photos" / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_bytes(content)
        return [folder / "photos"]

    return make


def coco(*, image: str = "x.png", seen: int = 1, box: tuple[float, ...] = (0, 0, 1, 1)) -> Callable[[Path], list[Path]]:
    """A maker of COCO's json beside one image of 6 x 6, with one annotation."""

    def make(folder: Path) -> list[Path]:
        (folder / "x.png").write_bytes(WHOLE)
        whole = {"images": [{"id": 1, "file_name": image, "width": 6, "height": 6}],
                 "annotations": [{"id": 7, "image_id": seen, "category_id": 1, "bbox": list(box)}],
                 "categories": [{"id": 1, "name": "square"}]}  # fmt: skip
        (folder / "coco.json").write_text(json.dumps(whole))
        return [folder / "coco.json"]

    return make


def voc(
    box: str = "<xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax>", head: str = ""
) -> Callable[[Path], list[Path]]:
    """A maker of a folder as Pascal VOC lays it out, of one image of 6 x 6 with one object."""

    def make(folder: Path) -> list[Path]:
        root = folder / "cells"
        for name in ("Annotations", "JPEGImages"):
            (root / name).mkdir(parents=True)
        (root / "JPEGImages" / "x.png").write_bytes(WHOLE)
        thing = f"<object><name>square</name><bndbox>{box}</bndbox></object>"
        text = f"{head}<annotation><filename>x.png</filename>{thing}</annotation>"
        (root / "Annotations" / "x.xml").write_text(text)
        return [root]

    return make


def yolo(line: str = "0 .5 .5 .2 .2", train: str = "images") -> Callable[[Path], list[Path]]:
    """A maker of YOLO's YAML beside one image of 6 x 6 and its labels."""

    def make(folder: Path) -> list[Path]:
        for name, content in (("images/x.png", WHOLE), ("labels/x.txt", line.encode())):
            path = folder / name
            path.parent.mkdir()
            path.write_bytes(content)
        (folder / "data.yaml").write_text(f"names: [square]\ntrain: {train}\n")
        return [folder / "data.yaml"]

    return make


REVIEWS = [f"{name}/{number}.txt" for name in ("pos", "neg") for number in range(12)]
SOUNDS = [f"{name}/{number}.wav" for name in ("high", "low") for number in range(4)]
BAD = [
    Bad("proteins without residues", files(**{"p.fasta": b">a\n\n>b\n"}), "p.fasta"),
    Bad("residues before a header", files(**{"p.fasta": b"MKV\n>b\nMKV\n"}), "p.fasta line 1"),
    Bad("recordings that are none", below(*SOUNDS, content=b"RIFF\0\0"), "0.wav"),
    Bad("recordings of one class", below("high/0.wav", "high/1.wav", content=b"RIFF"), "only one class"),
    Bad("an image that is not there", coco(image="y.png"), "y.png", "detect"),
    Bad("a box of another image", coco(seen=2), "coco.json", "detect"),
    Bad("a box of three numbers", coco(box=(0, 0, 1)), "coco.json", "detect"),
    Bad("sparse rows of ARFF", files(**{"x.arff": b"@relation x\n@attribute a numeric\n@data\n{0 5.1}\n"}), "line 4"),
    Bad("texts that are not text", below(*REVIEWS, content=b"caf\xe9 \x81\xff" * 9), ""),
    Bad("VOC's box without a corner", voc("<xmin>1</xmin><ymin>1</ymin><xmax>4</xmax>"), "x.xml"),
    Bad("VOC's box of words", voc("<xmin>a</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax>"), "x.xml"),
    Bad("VOC's file with entities", voc(head='<!DOCTYPE a [<!ENTITY b "c">]>'), "x.xml"),
    Bad("YOLO's box of three numbers", yolo("0 .5 .5 .2"), "x.txt"),
    Bad("YOLO's class of no name", yolo("7 .5 .5 .2 .2"), "x.txt"),
    Bad("YOLO's folder that is not there", yolo(train="pictures"), "data.yaml"),
    Bad("IDX without labels", files(train__images__idx3__ubyte=idx((4, 6, 6))), "labels"),
    Bad("IDX of other lengths", files(a__images__idx3__ubyte=idx((4, 6, 6)), a__labels__idx1__ubyte=idx((3,))), "4"),
    Bad("cut IDX", files(a__images__idx3__ubyte=idx((4, 6, 6), cut=9), a__labels__idx1__ubyte=idx((4,))), "144"),
    Bad("IDX of doubles", files(a__images__idx3__ubyte=idx((4, 6, 6), kind=14), a__labels__idx1__ubyte=idx((4,))), ""),
    Bad("IDX of labels only", files(a__labels__idx1__ubyte=idx((4,))), ""),
    Bad("IDX without images", files(a__images__idx3__ubyte=idx((0, 6, 6)), a__labels__idx1__ubyte=idx((0,))), ""),
    Bad("an empty folder", below("./"), "empty"),
    Bad("a folder of empty folders", below("cats/", "dogs/"), "photos"),
    Bad("photos without classes", below("a.png", "b.png"), "one folder a class"),
    Bad("photos of one class", below("cats/a.png", "cats/b.png"), ""),
    Bad("one photo", files(a=WHOLE), "images"),
    Bad("photos that are none", below("cats/a.png", "dogs/b.png", content=b"no picture"), "photos"),
    Bad("files of no kind", below("a.xyz", "b.xyz", content=bytes(range(256))), "photos"),
]  # fmt: skip

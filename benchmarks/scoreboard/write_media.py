"""Images, sound and questions about images as the files a user would have."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.scoreboard.write_tables import read_digits
from benchmarks.scoreboard.write_texts import write_csv

VALID_CLIPS, TEST_CLIPS = range(5, 8), range(5)  # numbers of the recordings of a speaker and digit
HELD_OUT_IMAGES = 400  # of easy-VQA's training images: their questions validate
SHEET = 50  # images along a side of a sheet of CIFAR-10


def write_fashion(raw: Path, out: Path) -> None:
    """The four IDX files as they are."""
    for path in sorted((raw / "fashion_mnist").glob("*-ubyte.xz")):
        shutil.copyfile(path, out / path.name)


def write_cifar(raw: Path, out: Path) -> None:
    """A folder a class below train and test, one lossless file an image."""
    folder = raw / "cifar10_subset"
    for side in ("train", "test"):
        labels = (folder / f"{side}_labels.txt").read_text().split()
        images = np.concatenate([read_sheet(path) for path in sorted(folder.glob(f"{side}_*.webp"))])
        for n, (label, pixels) in enumerate(zip(labels, images, strict=True)):
            save_image(pixels, out / side / label / f"{n:05d}.webp")


def read_sheet(path: Path) -> np.ndarray:
    """(2500, 32, 32, 3)"""
    sheet = np.asarray(Image.open(path))
    return sheet.reshape(SHEET, 32, SHEET, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)


def write_digit_images(raw: Path, out: Path) -> None:
    """The 8 x 8 digits as PNG files; the first half trains, the second tests."""
    table = read_digits(raw)
    for n, row in enumerate(table):
        pixels = (row[:64].reshape(8, 8) * 255 // 16).astype(np.uint8)
        save_image(pixels, out / ("train" if n < len(table) // 2 else "test") / str(row[64]) / f"{n:04d}.png")


def save_image(pixels: np.ndarray, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, lossless=True)  # which PNG always is, and takes no notice of


def write_bccd(raw: Path, out: Path) -> None:
    """Blood cells: Pascal VOC as it is, its lists say the split."""
    with tarfile.open(raw / "bccd" / "bccd.tar") as packed:
        packed.extractall(out, filter="data")


def write_spoken_digits(raw: Path, out: Path) -> None:
    """A folder a digit; recordings 0 to 4 of each speaker test, which is official, and 5 to 7 validate."""
    with tarfile.open(raw / "fsdd" / "fsdd.tar.xz") as packed:
        for member in packed:
            path = Path(member.name)
            if path.suffix != ".wav":
                continue
            digit, _, number = path.stem.split("_")
            side = "test" if int(number) in TEST_CLIPS else "valid" if int(number) in VALID_CLIPS else "train"
            (out / side / digit).mkdir(parents=True, exist_ok=True)
            inside = packed.extractfile(member)
            assert inside is not None
            (out / side / digit / path.name).write_bytes(inside.read())


def write_easy_vqa(raw: Path, out: Path) -> None:
    """Questions about images in three tables; no image is on two sides."""
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(raw / "easy_vqa" / "easy_vqa.tar.xz") as packed:
        packed.extractall(scratch, filter="data")
        root = Path(scratch) / "easy_vqa" / "data"
        for side in ("train", "test"):
            shutil.copytree(root / side / "images", out / side)
            asked = json.loads((root / side / "questions.json").read_text())
            parts = {side: asked}
            if side == "train":
                parts = {"valid": [one for one in asked if one[2] < HELD_OUT_IMAGES],
                         "train": [one for one in asked if one[2] >= HELD_OUT_IMAGES]}  # fmt: skip
            for name, part in parts.items():
                rows = ((f"{side}/{image}.png", question, answer) for question, answer, image in part)
                write_csv(out / f"{name}.csv", ("image", "question", "label"), rows)

"""The page on other parts: every command and example is run as it stands, on small data of every kind."""

from __future__ import annotations

import json
import re
import shlex
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.cli import made
from tests.cli.trying import run, standing_in
from tests.training.nursery import Nursery

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "other-parts.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def recordings(folder: Path) -> None:
    """Tones of a tenth of a second, high and low."""
    noise = np.random.default_rng(0)
    for name, pitch in (("high", 1400), ("low", 300)):
        (folder / "recordings" / name).mkdir(parents=True)
        for number in range(16):
            time = np.arange(1600) / 16000
            tone = np.sin(2 * np.pi * (pitch + 40 * number) * time) * 9000 + noise.normal(0, 300, 1600)
            with wave.open(str(folder / "recordings" / name / f"{number}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16000)
                file.writeframes(tone.astype("<i2").tobytes())


def weather(folder: Path) -> None:
    hours = np.arange(600)
    rows = [
        f"2024-01-{1 + hour // 24:02} {hour % 24:02}:00,{10 + 5 * np.sin(hour / 4):.3f},{50 + hour % 7}"
        for hour in hours
        if hour < 24 * 25
    ]
    (folder / "weather.csv").write_text("\n".join(["time,warmth,damp", *rows]) + "\n")


def proteins(folder: Path) -> None:
    letters = np.array(list("ACDEFGHIKLMNPQRSTVWY"))
    noise = np.random.default_rng(0)
    texts = ("".join(noise.choice(letters, 40 + n)) for n in range(40))
    (folder / "proteins.fasta").write_text("".join(f">p{n}\n{text}\n" for n, text in enumerate(texts)))


def shapes(folder: Path) -> None:
    """Twelve images with one bright square each, and COCO's json of where it is."""
    from PIL import Image

    noise = np.random.default_rng(0)
    (folder / "shapes").mkdir()
    images, boxes = [], []
    for number in range(12):
        pixels = noise.integers(0, 60, (32, 32, 3), dtype=np.uint8)
        x, y = (int(n) for n in noise.integers(2, 18, 2))
        pixels[y : y + 10, x : x + 10] = 220
        Image.fromarray(pixels).save(folder / "shapes" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": 32, "height": 32})
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": [x, y, 10, 10], "area": 100,
                      "iscrowd": 0})  # fmt: skip
    whole = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "square"}]}
    (folder / "shapes" / "annotations.json").write_text(json.dumps(whole))


def captions(folder: Path) -> None:
    """Photos with a word each; the label is whether they agree."""
    photos = sorted((folder / "photos").rglob("*.png"))
    rows = [
        [str(photo.relative_to(folder)), f"a {word} thing number {at}", "yes" if word == photo.parent.name else "no"]
        for at, photo in enumerate(photos)
        for word in sorted({other.parent.name for other in photos})[:2]
    ]
    made.table(folder / "captions.csv", ["picture", "text", "label"], rows)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    for make in (made.book, made.reviews, made.tagged, made.parallel, made.photos, recordings, weather, proteins,
                 shapes, captions):  # fmt: skip
        make(folder)
    return folder


def test_every_command_of_the_page_runs(home: Path) -> None:
    lines = [line for block in blocks("sh") for line in block.strip().splitlines()]
    assert len(lines) >= 17
    with standing_in(home):
        for line in lines:
            words = shlex.split(line, comments=True)[1:]
            if words[0] == "train":
                words += ["--steps", "2", "--progress", "none"]
            run(*words)
    assert len((home / "ahead.csv").read_text().splitlines()) == 13  # a header and the 12 rows to come
    assert "high" in (home / "heard.csv").read_text()
    # After two steps no box is sure enough to be written; tests/training/test_detection.py trains until some are.
    assert (home / "boxes.csv").read_text().startswith("image,label,score,left,top,width,height\n")


@pytest.mark.parametrize("number", [0, 1])
def test_the_python_of_the_page_runs(number: int, tmp_path: Path, nursery: Nursery) -> None:
    code = blocks("python")[number]
    done = nursery.python(code, tmp_path)
    assert done.returncode == 0, done.stderr

"""Flips are decided by looking: signs that mean something else when mirrored are not flipped, pictures without a left
and right are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anyformer.data.columns.image import image_bytes
from anyformer.data.images.mirroring import compare_mirrored, shrink
from anyformer.data.prepared import Prepared
from anyformer.data.settings import Data, ImageSettings
from anyformer.tasks.prepare import prepare

CLASSES = 4


def pictures(count: int, *, symmetric: bool, colours: int = 1, side: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Noisy pictures of four shapes (N, C, H, W) and their classes; each shape is its own mirror image, or is not."""
    random = np.random.default_rng(0)
    shapes = random.integers(0, 2, (CLASSES, 1, side // 4, side // 4)).repeat(4, 2).repeat(4, 3) * 120.0
    shapes = np.maximum(shapes, shapes[..., ::-1]) if symmetric else shapes
    classes = np.arange(count) % CLASSES
    noise = random.normal(60, 40, (count, colours, side, side))
    return (shapes[classes] + noise).clip(0, 255).astype(np.uint8), classes


@pytest.mark.quick
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("count", [80, 2000])
def test_a_classifier_that_knows_no_mirror_tells(symmetric: bool, count: int) -> None:
    pixels, classes = pictures(count, symmetric=symmetric)
    found = compare_mirrored(pixels, np.arange(count), classes)
    assert found.straight > 0.9
    assert found.is_symmetric is symmetric


def test_images_are_averaged_to_few_cells_around_their_middle() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 50, 28), dtype=np.uint8)
    small = shrink(pixels)
    assert small.shape == (2, 3, 12, 14)
    assert np.allclose(small[:, :, 0, 0], pixels[:, :, 1:5, :2].mean((2, 3)))
    assert np.allclose(shrink(pixels[..., ::-1]), small[..., ::-1])  # or mirroring would be what is noticed


def prepared(tmp_path: Path, pixels: np.ndarray, target: np.ndarray, **images: object) -> Prepared:
    tmp_path.mkdir(exist_ok=True)
    paths = [tmp_path / f"{number}.png" for number in range(len(pixels))]
    for path, image in zip(paths, np.moveaxis(pixels, 1, -1), strict=True):
        path.write_bytes(image_bytes(image))
    rows = {"image": [str(path) for path in paths], "target": target.tolist()}
    settings = Data(target=("target",), images=ImageSettings(**images))  # type: ignore[arg-type]
    return prepare(rows, settings=settings, seed=0, cache=tmp_path / "cache")


@pytest.mark.parametrize(("symmetric", "colours"), [(True, 3), (False, 1)])
def test_the_decision_is_said_written_down_and_can_be_changed(tmp_path: Path, symmetric: bool, colours: int) -> None:
    pixels, classes = pictures(160, symmetric=symmetric, colours=colours)
    words = np.array(["a", "b", "c", "d"])[classes]
    made = prepared(tmp_path / "auto", pixels, words)
    said = next(line for line in made.notes if "left-right" in line)
    assert said.startswith("image    flipped" if symmetric else "image    not flipped") and "mirrored" in said
    assert made.settings is not None and made.settings.images.flip is symmetric
    other = prepared(tmp_path / "asked", pixels, words, flip=not symmetric)
    assert other.settings is not None and other.settings.images == ImageSettings(flip=not symmetric)
    assert not any("left-right" in line for line in other.notes)


def test_numbers_are_split_at_their_median(tmp_path: Path) -> None:
    pixels, classes = pictures(160, symmetric=False)
    numbers = np.where(classes < 2, 1.5, 7.25) + np.random.default_rng(0).normal(0, 0.1, len(classes))
    made = prepared(tmp_path, pixels, numbers)
    assert made.task == "regress" and made.settings is not None and made.settings.images.flip is False

"""Augmentation: a row depends on seed, epoch and row alone; each operation does what its name says."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from anyformer.data.examples import Draw
from anyformer.data.images.augmentation import augmented_batch, erase_rectangles, shift_and_flip
from anyformer.data.images.randaugment import OPERATIONS, move_by
from anyformer.data.settings import ImageSettings

ALL = ImageSettings(flip=True, randaugment=2, erase=0.5, magnitude=15)
STILL = ImageSettings(crop=0.0, flip=False, randaugment=0, erase=0.0)
BY_NAME = {operation.__name__: operation for operation in OPERATIONS}


def images(count: int = 24, channels: int = 3, side: int = 20) -> np.ndarray:
    """Smooth pictures with all levels in them."""
    random = np.random.default_rng(1)
    small = random.integers(0, 256, (count, channels, 5, 5), dtype=np.uint8)
    return small.repeat(side // 5, 2).repeat(side // 5, 3)


@pytest.mark.quick
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_equals_one_at_a_time_in_any_order(channels: int) -> None:
    pixels, rows = images(channels=channels), np.arange(100, 124)
    kept = pixels.copy()
    batch = augmented_batch(pixels, ALL, Draw(3, 5), rows)
    assert np.array_equal(pixels, kept)
    assert batch.dtype == np.uint8 and batch.shape == pixels.shape
    for i, row in enumerate(rows):
        assert np.array_equal(batch[i], augmented_batch(pixels[i : i + 1], ALL, Draw(3, 5), [row])[0])
    order = np.random.default_rng(0).permutation(24)
    assert np.array_equal(augmented_batch(pixels[order], ALL, Draw(3, 5), rows[order]), batch[order])
    assert np.array_equal(augmented_batch(pixels[7:9], ALL, Draw(3, 5), rows[7:9]), batch[7:9])


def test_seed_epoch_and_row_each_make_a_difference() -> None:
    pixels = images()
    batch = augmented_batch(pixels, ALL, Draw(0, 0), range(24))
    assert np.array_equal(batch, augmented_batch(pixels, ALL, Draw(0, 0), range(24)))
    for draw, rows in ((Draw(1, 0), range(24)), (Draw(0, 1), range(24)), (Draw(0, 0), range(1, 25))):
        other = augmented_batch(pixels, ALL, draw, rows)
        assert sum(not np.array_equal(a, b) for a, b in zip(batch, other, strict=True)) > 12


def test_nothing_asked_is_nothing_done() -> None:
    assert np.array_equal(augmented_batch(images(), STILL, Draw(0, 0), range(24)), images())


@pytest.mark.parametrize(
    "settings",
    [
        STILL.replace(crop=0.2),
        STILL.replace(flip=True),
        STILL.replace(randaugment=1),
        STILL.replace(erase=1.0),
    ],
)
def test_each_setting_alone_changes_images(settings: ImageSettings) -> None:
    made = augmented_batch(images(), settings, Draw(0, 0), range(24))
    changed = sum(not np.array_equal(a, b) for a, b in zip(images(), made, strict=True))
    assert changed >= 6


def test_flips_are_mirror_images_half_of_the_time() -> None:
    pixels = np.repeat(images(1), 400, 0)
    made = augmented_batch(pixels, STILL.replace(flip=True), Draw(0, 0), range(400))
    mirrored = [np.array_equal(image, pixels[0][:, :, ::-1]) for image in made]
    same = [np.array_equal(image, pixels[0]) for image in made]
    assert sum(mirrored) + sum(same) == 400
    assert 150 < sum(mirrored) < 250


def test_a_shift_is_a_crop_of_the_padded_image() -> None:
    many = np.repeat(images(1), 300, 0)
    made = shift_and_flip(many, 0.1, Draw(0, 0).uniform(range(300), 2), np.zeros(300, bool))  # up to two of twenty
    padded = np.pad(many[0], ((0, 0), (2, 2), (2, 2)))
    crops = {(r, c): padded[:, r : r + 20, c : c + 20] for r in range(5) for c in range(5)}
    found = [[place for place, crop in crops.items() if np.array_equal(image, crop)] for image in made]
    assert all(found)
    assert len({place for places in found for place in places}) == 25


def test_an_erased_rectangle() -> None:
    image = np.full((50, 3, 30, 40), 9, np.uint8)
    chances = Draw(0, 0).uniform(range(50), 5)
    erase_rectangles(image, chances, 1.0)
    blanks = image != 9
    for blank in blanks:
        assert blank.any() and np.array_equal(blank[0], blank[1])
        rows, columns = blank[0].any(1).sum(), blank[0].any(0).sum()
        assert rows * columns == blank[0].sum()  # a full rectangle
        assert 0.01 < blank[0].mean() < 0.4
    half = np.full((50, 3, 30, 40), 9, np.uint8)
    erase_rectangles(half, chances, 0.5)
    untouched = (half == 9).all((1, 2, 3))
    assert 12 < untouched.sum() < 38 and np.array_equal(half[~untouched], image[~untouched])


def test_numbers_drawn_for_rows_are_uniform_and_unrelated() -> None:
    drawn = Draw(7, 3).uniform(range(5000), 4)
    assert drawn.shape == (5000, 4) and drawn.min() >= 0 and drawn.max() < 1
    counts = np.stack([np.histogram(drawn[:, k], 10, (0, 1))[0] for k in range(4)])
    assert abs(counts - 500).max() < 110  # five standard deviations
    later, others = Draw(7, 4).uniform(range(5000), 4), Draw(8, 3).uniform(range(5000), 4)
    assert correlation(drawn[1:], drawn[:-1]) < 0.08
    assert correlation(drawn, later) < 0.08 and correlation(drawn, others) < 0.08
    assert correlation(drawn, drawn[:, ::-1]) > 0.99  # control: the same numbers in other columns


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """The largest between a column of each."""
    count = one.shape[1]
    return float(abs(np.corrcoef(one.T, other.T)[:count, count:]).max())


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("channels", [1, 3])
def test_operations_keep_shape_and_type_at_all_strengths(name: str, channels: int) -> None:
    for image in (
        images(1, channels)[0],
        np.zeros((channels, 20, 20), np.uint8),
        np.full((channels, 7, 9), 255, np.uint8),
    ):
        for strength in (0.0, 0.3, 1.0):
            for sign in (-1, 1):
                made = BY_NAME[name](image, strength, sign)
                assert made.shape == image.shape and made.dtype == np.uint8


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"auto_contrast", "equalize"}))
def test_no_strength_no_change(name: str) -> None:
    image = images(1)[0]
    assert np.abs(BY_NAME[name](image, 0.0, 1).astype(int) - image).max() <= 1
    if name != "identity":
        assert np.abs(BY_NAME[name](image, 1.0, 1).astype(int) - image).max() > 10  # the control


def against_pillow(image: np.ndarray) -> dict[str, Image.Image]:
    picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(image, 0, -1)))
    return {
        "brightness": ImageEnhance.Brightness(picture).enhance(1.45),
        "contrast": ImageEnhance.Contrast(picture).enhance(1.45),
        "colour": ImageEnhance.Color(picture).enhance(1.45),
        "sharpness": ImageEnhance.Sharpness(picture).enhance(1.45),
        "posterize": ImageOps.posterize(picture, 6),
        "solarize": ImageOps.solarize(picture, 128),
        "auto_contrast": ImageOps.autocontrast(picture),
        "equalize": ImageOps.equalize(picture),
        "rotate": picture.rotate(15, resample=Image.Resampling.BILINEAR),
    }


@pytest.mark.parametrize("name", sorted(against_pillow(images(1)[0])))
def test_operations_agree_with_pillow(name: str) -> None:
    image = images(1)[0] // 2 + 40
    if name == "equalize":  # pillow counts in whole steps, which are coarse for few pixels
        noise = np.random.default_rng(0).integers(0, 120, (2, 3, 300, 300)).sum(0)
        image = noise.astype(np.uint8)
    theirs = np.moveaxis(np.asarray(against_pillow(image)[name]), -1, 0).astype(int)
    gap = np.abs(BY_NAME[name](image, 0.5, 1) - theirs).max()
    assert gap <= 2  # pillow rounds down


def test_all_fourteen_are_there_and_drawn() -> None:
    assert len(BY_NAME) == 14
    settings = STILL.replace(randaugment=1, magnitude=20)
    pixels = np.repeat(images(1), 300, 0)
    made = augmented_batch(pixels, settings, Draw(0, 0), range(300))
    assert len({image.tobytes() for image in made}) >= 20  # thirteen kinds that change, most with two signs


def test_moved_by_more_than_the_image_is_black() -> None:
    image = images(1)[0]
    assert not move_by(image, 25, 0).any()
    assert not move_by(image, 0, -20).any()
    assert np.array_equal(move_by(image, 3, -2)[:, 3:, :-2], image[:, :-3, 2:])

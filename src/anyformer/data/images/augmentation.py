"""Training images varied at random: shifted, flipped, RandAugment, erased.

What is drawn depends on the seed, the epoch and the row alone, so that an image comes out the same in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anyformer.data.examples import Draw
from anyformer.data.images.randaugment import OPERATIONS
from anyformer.data.settings import ImageSettings

STRONGEST = 30  # what `magnitude` counts up to
BLANK = 127  # of an erased rectangle: about nothing once pixels are normalised
AREA, ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)  # of an erased rectangle
DRAWS = 8  # two for a shift, one for a flip, five for an erased rectangle


def augmented_batch(
    pixels: np.ndarray, settings: ImageSettings, draw: Draw, rows: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Images (B, C, H, W) in whole numbers 0 to 255, varied; those given are left as they are."""
    chances = draw.uniform(rows, DRAWS)  # (B,DRAWS)
    made = shift_and_flip(pixels, settings.crop, chances[:, :2], (chances[:, 2] < 0.5) & bool(settings.flip))
    if settings.randaugment:
        strength = settings.magnitude / STRONGEST
        for image, row in zip(made, rows, strict=True):
            image[:] = rand_augmented(image, settings.randaugment, strength, draw.generator(int(row)))
    if settings.erase:
        erase_rectangles(made, chances[:, 3:], settings.erase)
    return made


def shift_and_flip(pixels: np.ndarray, share: float, chances: np.ndarray, flipped: np.ndarray) -> np.ndarray:
    """Moved by up to a share of their sides, black coming in, by `chances` (B,2); those `flipped` (B,) are mirrored."""
    _, _, high, wide = pixels.shape
    most = np.array([round(share * high), round(share * wide)])
    starts = (chances * (2 * most + 1)).astype(np.int64)  # (B,2): from none to twice as many
    padded = np.pad(pixels, ((0, 0), (0, 0), (most[0], most[0]), (most[1], most[1])))
    made = np.empty_like(pixels)
    for image, around, (top, left), mirrored in zip(made, padded, starts.tolist(), flipped.tolist(), strict=True):
        piece = around[:, top : top + high, left : left + wide]
        image[:] = piece[:, :, ::-1] if mirrored else piece
    return made


def rand_augmented(pixels: np.ndarray, count: int, strength: float, generator: np.random.Generator) -> np.ndarray:
    """So many of the fourteen operations one after another, each drawn anew, all of one strength."""
    chosen = generator.integers(len(OPERATIONS), size=count)
    signs = 2 * generator.integers(2, size=count) - 1
    for which, sign in zip(chosen.tolist(), signs.tolist(), strict=True):
        pixels = OPERATIONS[which](pixels, strength, sign)
    return pixels


def erase_rectangles(pixels: np.ndarray, chances: np.ndarray, share: float) -> None:
    """Blank a rectangle of a share of the images (1708.04896), in place: of a random area, shape and place.

    `chances` (B,5) say whether, the area, the shape, the row and the column. A side that would be longer than the
    image's is as long as that.
    """
    _, _, high, wide = pixels.shape
    for image, (chance, area, aspect, top, left) in zip(pixels, chances.tolist(), strict=True):
        if chance >= share:
            continue
        whole = high * wide * (AREA[0] + area * (AREA[1] - AREA[0]))
        ratio = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** aspect
        rows = min(high, max(1, round(math.sqrt(whole * ratio))))
        columns = min(wide, max(1, round(math.sqrt(whole / ratio))))
        first, start = int(top * (high - rows + 1)), int(left * (wide - columns + 1))
        image[:, first : first + rows, start : start + columns] = BLANK

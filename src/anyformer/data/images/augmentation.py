"""Random image augmentation for training: shifts, flips, RandAugment, random erasing.

All draws depend only on the seed, the epoch and the row, so that an image is augmented the same way in any batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anyformer.data.examples import Draw
from anyformer.data.images.randaugment import OPERATIONS
from anyformer.data.settings import ImageSettings

STRONGEST = 30  # maximum `magnitude`
BLANK = 127  # value of an erased rectangle: about zero after normalisation
AREA, ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)  # of an erased rectangle
DRAWS = 8  # two for a shift, one for a flip, five for an erased rectangle


def augmented_batch(
    pixels: np.ndarray, settings: ImageSettings, draw: Draw, rows: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Augmented images (B, C, H, W) in uint8; the inputs are not modified."""
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
    """Shift by up to a fraction of the sides, padding with black, by `chances` (B,2); mirror those `flipped` (B,)."""
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
    """Apply `count` random operations of the fourteen in sequence, all with the same strength."""
    chosen = generator.integers(len(OPERATIONS), size=count)
    signs = 2 * generator.integers(2, size=count) - 1
    for which, sign in zip(chosen.tolist(), signs.tolist(), strict=True):
        pixels = OPERATIONS[which](pixels, strength, sign)
    return pixels


def erase_rectangles(pixels: np.ndarray, chances: np.ndarray, share: float) -> None:
    """Random erasing of a fraction of the images (1708.04896), in place: a rectangle of random area, aspect ratio and
    position.

    `chances` (B,5) determine whether, area, aspect ratio, row and column. Sides are clipped to the image's.
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

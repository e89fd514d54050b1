"""Training images varied at random: shifted, flipped, RandAugment, erased. Random only through the generator given."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anyformer.data.examples import Draw
from anyformer.data.images.randaugment import OPERATIONS, move_by
from anyformer.data.settings import ImageSettings

STRONGEST = 30  # what `magnitude` counts up to
BLANK = 127  # of an erased rectangle: about nothing once pixels are normalised
AREA, ASPECT, TRIES = (0.02, 1 / 3), (0.3, 1 / 0.3), 10  # of an erased rectangle


def augment(pixels: np.ndarray, settings: ImageSettings, generator: np.random.Generator) -> np.ndarray:
    """One image (C, H, W) in whole numbers 0 to 255, varied; the image given is left as it is."""
    made = shift(pixels, settings.crop, generator)
    if settings.flip and generator.random() < 0.5:
        made = made[:, :, ::-1]
    if settings.randaugment:
        made = rand_augmented(made, settings.randaugment, settings.magnitude / STRONGEST, generator)
    if settings.erase and generator.random() < settings.erase:
        made = erase_rectangle(made, generator)
    return np.ascontiguousarray(made)


def augmented_batch(
    pixels: np.ndarray, settings: ImageSettings, draw: Draw, rows: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Images (B, C, H, W), each varied by its own row number, the seed and the epoch, whatever its neighbours are."""
    made = np.empty_like(pixels)
    for i, row in enumerate(rows):
        made[i] = augment(pixels[i], settings, draw.generator(int(row)))
    return made


def shift(pixels: np.ndarray, share: float, generator: np.random.Generator) -> np.ndarray:
    """Moved by up to a share of its sides; black comes in."""
    _, high, wide = pixels.shape
    most = round(share * high), round(share * wide)
    if not any(most):
        return pixels
    down, right = (int(generator.integers(-by, by + 1)) for by in most)
    return move_by(pixels, down, right)


def rand_augmented(pixels: np.ndarray, count: int, strength: float, generator: np.random.Generator) -> np.ndarray:
    """So many of the fourteen operations one after another, each drawn anew, all of one strength."""
    chosen = generator.integers(len(OPERATIONS), size=count)
    signs = 2 * generator.integers(2, size=count) - 1
    for which, sign in zip(chosen.tolist(), signs.tolist(), strict=True):
        pixels = OPERATIONS[which](pixels, strength, sign)
    return pixels


def erase_rectangle(pixels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A rectangle blanked (1708.04896): of a random share of the area, a random shape and a random place."""
    _, high, wide = pixels.shape
    made = np.array(pixels)
    for _ in range(TRIES):
        area = high * wide * generator.uniform(*AREA)
        aspect = math.exp(generator.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < rows < high and 0 < columns < wide:
            top, left = int(generator.integers(high - rows + 1)), int(generator.integers(wide - columns + 1))
            made[:, top : top + rows, left : left + columns] = BLANK
            break
    return made

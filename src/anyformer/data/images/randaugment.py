"""The fourteen operations of RandAugment (1909.13719), by strength from 0 to 1 and sign.

Images are (C, H, W) in uint8. Pixel-wise operations are lookup tables of 256 values, which are fastest for small
images; geometric ones use pillow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from anyformer.data.images.decoding import pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Operation = Callable[[np.ndarray, float, int], np.ndarray]
SHEAR, ROTATE, SHIFT, CHANGE, BITS = 0.3, 30.0, 150 / 331, 0.9, 4  # the meaning of strength 1
LEVELS = np.arange(256, dtype=np.float32)
WHOLE = np.arange(256, dtype=np.uint8)
LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # weights of red, green and blue in luminance


def identity(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    return image


# ---------------------------------------------------------------- geometric operations


def move_by(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """Shift by whole pixels, padding with black."""
    _, high, wide = image.shape
    down, right = max(-high, min(high, down)), max(-wide, min(wide, right))
    made = np.zeros_like(image)
    made[:, max(0, down) : high + min(0, down), max(0, right) : wide + min(0, right)] = image[
        :, max(0, -down) : high - max(0, down), max(0, -right) : wide - max(0, right)
    ]
    return made


def translate_x(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    return move_by(image, 0, round(sign * SHIFT * strength * image.shape[2]))


def translate_y(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    return move_by(image, round(sign * SHIFT * strength * image.shape[1]), 0)


def through_pillow(image: np.ndarray, change: Callable[[Image], Image]) -> np.ndarray:
    """An operation of pillow on an array."""
    bands = image[0] if len(image) == 1 else np.moveaxis(image, 0, -1)
    made = np.asarray(change(pillow().fromarray(np.ascontiguousarray(bands))))
    return made[None] if made.ndim == 2 else np.moveaxis(made, -1, 0)


def affine(image: np.ndarray, *matrix: float) -> np.ndarray:
    """Affine transform, padding with black."""
    module = pillow()

    def change(picture: Image) -> Image:
        return picture.transform(picture.size, module.Transform.AFFINE, matrix, resample=module.Resampling.BILINEAR)

    return through_pillow(image, change)


def shear_x(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    by = sign * SHEAR * strength
    return affine(image, 1, by, -by * image.shape[1] / 2, 0, 1, 0)  # about the centre


def shear_y(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    by = sign * SHEAR * strength
    return affine(image, 1, 0, 0, by, 1, -by * image.shape[2] / 2)


def rotate(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    angle, filter_ = sign * ROTATE * strength, pillow().Resampling.BILINEAR
    return through_pillow(image, lambda picture: picture.rotate(angle, resample=filter_))


def sharpness(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    from PIL import ImageEnhance

    return through_pillow(image, lambda p: ImageEnhance.Sharpness(p).enhance(1 + sign * CHANGE * strength))


# ---------------------------------------------------------------- pixel-wise operations


def whole(values: np.ndarray) -> np.ndarray:
    """Numbers rounded to levels from 0 to 255."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def brightness(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    return whole(LEVELS * (1 + sign * CHANGE * strength)).take(image)


def contrast(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    """Change contrast: away from the mean brightness, or towards it."""
    means = image.mean((1, 2), dtype=np.float32)
    middle = float(means[0] if len(means) == 1 else means @ LUMA)
    return whole(middle + (LEVELS - middle) * (1 + sign * CHANGE * strength)).take(image)


def colour(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    """Change saturation: away from gray, or towards it; grayscale images are unchanged."""
    if len(image) == 1:
        return image
    gray = np.tensordot(LUMA, image.astype(np.float32), 1)
    return whole(gray + (image - gray) * (1 + sign * CHANGE * strength))


def posterize(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    lost = round(BITS * strength)
    return image & np.uint8(0xFF << lost & 0xFF)


def solarize(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    return np.where(256 * (1 - strength) > WHOLE, WHOLE, 255 - WHOLE).take(image)


def auto_contrast(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    """Stretch each channel from black to white."""
    made = np.empty_like(image)
    for band, out in zip(image, made, strict=True):
        low, high = int(band.min()), int(band.max())
        out[...] = whole((LEVELS - low) * (255 / (high - low))).take(band) if high > low else band
    return made


def equalize(image: np.ndarray, strength: float, sign: int) -> np.ndarray:
    """Equalise the histogram of each channel."""
    made = np.empty_like(image)
    for band, out in zip(image, made, strict=True):
        counts = np.bincount(band.ravel(), minlength=256)
        below = np.cumsum(counts) - counts
        spread = band.size - counts[np.flatnonzero(counts)[-1]]  # all pixels but those of the highest level
        out[...] = whole(below * (255 / spread)).take(band) if spread else band
    return made


OPERATIONS: tuple[Operation, ...] = (
    identity, shear_x, shear_y, translate_x, translate_y, rotate, brightness, colour, contrast, sharpness, posterize,
    solarize, auto_contrast, equalize,
)  # fmt: skip

"""The fourteen operations of RandAugment (1909.13719), on pillow images, by strength from 0 to 1 and sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from anyformer.data.picture_decoding import pillow

if TYPE_CHECKING:
    from PIL.Image import Image

Operation = Callable[["Image", float, int], "Image"]
SHEAR, ROTATE, SHIFT, CHANGE, BITS = 0.3, 30.0, 150 / 331, 0.9, 4  # what strength 1 means


def identity(image: Image, strength: float, sign: int) -> Image:
    return image


def affine(image: Image, matrix: tuple[float, float, float, float, float, float]) -> Image:
    """Moved pixels; what comes in from outside is black."""
    module = pillow()
    return image.transform(image.size, module.Transform.AFFINE, matrix, resample=module.Resampling.BILINEAR)


def shear_x(image: Image, strength: float, sign: int) -> Image:
    by = sign * SHEAR * strength
    return affine(image, (1, by, -by * image.size[1] / 2, 0, 1, 0))  # about the middle


def shear_y(image: Image, strength: float, sign: int) -> Image:
    by = sign * SHEAR * strength
    return affine(image, (1, 0, 0, by, 1, -by * image.size[0] / 2))


def translate_x(image: Image, strength: float, sign: int) -> Image:
    return affine(image, (1, 0, round(sign * SHIFT * strength * image.size[0]), 0, 1, 0))


def translate_y(image: Image, strength: float, sign: int) -> Image:
    return affine(image, (1, 0, 0, 0, 1, round(sign * SHIFT * strength * image.size[1])))


def rotate(image: Image, strength: float, sign: int) -> Image:
    return image.rotate(sign * ROTATE * strength, resample=pillow().Resampling.BILINEAR)


def brightness(image: Image, strength: float, sign: int) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Brightness(image).enhance(1 + sign * CHANGE * strength)


def colour(image: Image, strength: float, sign: int) -> Image:
    from PIL import ImageEnhance

    return image if image.mode == "L" else ImageEnhance.Color(image).enhance(1 + sign * CHANGE * strength)


def contrast(image: Image, strength: float, sign: int) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Contrast(image).enhance(1 + sign * CHANGE * strength)


def sharpness(image: Image, strength: float, sign: int) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Sharpness(image).enhance(1 + sign * CHANGE * strength)


def posterize(image: Image, strength: float, sign: int) -> Image:
    from PIL import ImageOps

    return ImageOps.posterize(image, 8 - round(BITS * strength))


def solarize(image: Image, strength: float, sign: int) -> Image:
    from PIL import ImageOps

    return ImageOps.solarize(image, round(256 * (1 - strength)))


def auto_contrast(image: Image, strength: float, sign: int) -> Image:
    from PIL import ImageOps

    return ImageOps.autocontrast(image)


def equalize(image: Image, strength: float, sign: int) -> Image:
    from PIL import ImageOps

    return ImageOps.equalize(image)


OPERATIONS: tuple[Operation, ...] = (
    identity, shear_x, shear_y, translate_x, translate_y, rotate, brightness, colour, contrast, sharpness, posterize,
    solarize, auto_contrast, equalize,
)  # fmt: skip

"""Whether training images may be flipped left-right: do mirrored ones keep their class?

A mirrored letter or digit is another one, or none; a mirrored dog is a dog. The test is a simple classifier that has
never seen mirrored images: if its accuracy on them is as good, the classes do not depend on left and right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_IMAGES = 4000  # images examined
SIDE = 16  # images are averaged to this many cells per side
MARGIN = 0.02  # tolerated loss of accuracy by mirroring, in addition to chance


class MirrorTest(NamedTuple):
    """Accuracy of the nearest class mean on images and on the same images mirrored."""

    straight: float
    mirrored: float
    images: int

    @property
    def is_symmetric(self) -> bool:
        """Whether mirroring loses no more than the margin plus two standard errors."""
        spread = (max(1e-9, self.straight * (1 - self.straight)) / max(1, self.images)) ** 0.5
        return self.mirrored >= self.straight - MARGIN - 2 * spread


def compare_mirrored(pixels: np.ndarray, rows: np.ndarray, classes: np.ndarray) -> MirrorTest:
    """Fit class means to half of the images and classify the other half; `classes` (N,) are those of `rows`."""
    order = np.random.default_rng(0).permutation(len(rows))[:MOST_IMAGES]
    half = len(order) // 2
    (learned, known), (others, truth) = (
        (shrink(pixels[rows[part]]), classes[part]) for part in (order[:half], order[half:])
    )
    names = np.unique(known)
    means = np.stack([learned[known == name].mean(0) for name in names])
    answers = [names[nearest(images, means)] for images in (others, others[..., ::-1])]
    straight, mirrored = (float((answer == truth).mean()) if len(truth) else 0.0 for answer in answers)
    return MirrorTest(straight, mirrored, len(truth))


def shrink(pixels: np.ndarray) -> np.ndarray:
    """Average images (N, C, H, W) over blocks to at most 16 x 16; a remainder is cropped evenly at the edges."""
    for axis in (2, 3):
        length = pixels.shape[axis]
        block = -(-length // SIDE)
        over = length % block
        pixels = np.take(pixels, range(over // 2, length - (over - over // 2)), axis)
        shape = (*pixels.shape[:axis], -1, block, *pixels.shape[axis + 1 :])
        pixels = pixels.reshape(shape).mean(axis + 1, dtype=np.float32)
    return pixels


def nearest(images: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The index of the mean closest to each image."""
    flat, centres = images.reshape(len(images), -1), means.reshape(len(means), -1)
    distances = (centres**2).sum(1) - 2 * flat @ centres.T  # without |image|², which is the same for all
    return np.asarray(distances.argmin(1))

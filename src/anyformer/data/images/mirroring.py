"""Whether training images may be flipped left-right: do mirrored ones still mean what they say?

A letter or a digit mirrored is another one, or none; a dog is a dog. A simple classifier that has never seen a
mirrored image tells them apart: where it reads mirrored images as well as the others, the data has no left and right.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MOST_IMAGES = 4000  # looked at
SIDE = 16  # cells a side that images are averaged to
MARGIN = 0.02  # of accuracy that may be lost by mirroring, beside what is chance


class MirrorTest(NamedTuple):
    """Accuracies of the nearest class mean on images and on the same images mirrored."""

    straight: float
    mirrored: float
    images: int

    @property
    def is_symmetric(self) -> bool:
        """Whether mirroring loses no more than chance may explain, two standard errors."""
        spread = (max(1e-9, self.straight * (1 - self.straight)) / max(1, self.images)) ** 0.5
        return self.mirrored >= self.straight - MARGIN - 2 * spread


def compare_mirrored(pixels: np.ndarray, rows: np.ndarray, classes: np.ndarray) -> MirrorTest:
    """Learn class means from half of some images and classify the other half; `classes` (N,) are those of `rows`."""
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
    """Images (N, C, H, W) as means of blocks, at most 16 x 16 of them; what is over at the edges is left out evenly."""
    for axis in (2, 3):
        length = pixels.shape[axis]
        block = -(-length // SIDE)
        over = length % block
        pixels = np.take(pixels, range(over // 2, length - (over - over // 2)), axis)
        shape = (*pixels.shape[:axis], -1, block, *pixels.shape[axis + 1 :])
        pixels = pixels.reshape(shape).mean(axis + 1, dtype=np.float32)
    return pixels


def nearest(images: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The number of the mean that each image is closest to."""
    flat, centres = images.reshape(len(images), -1), means.reshape(len(means), -1)
    distances = (centres**2).sum(1) - 2 * flat @ centres.T  # less |image|², which is the same for all
    return np.asarray(distances.argmin(1))

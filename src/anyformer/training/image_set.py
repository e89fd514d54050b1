"""Images with their classes, all decoded to one size: what training a generator reads."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data.datasets.arrays import Arrays
from anyformer.data.images.decode_all import normalised, picture_arrays, picture_steps, read_pictures
from anyformer.data.prepared import Say
from anyformer.data.settings import ImageSettings
from anyformer.errors import UserError

Images = str | Path | Sequence[str | Path] | tuple[Any, Any]


@dataclass(frozen=True)
class ImageSet:
    """Pixels (N,C,S,S) in 0 to 255, the number of each one's class, and the names of the classes."""

    pixels: np.ndarray
    labels: np.ndarray
    names: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def colours(self) -> int:
        """1 where all images are gray."""
        return self.pixels.shape[1]

    @property
    def fingerprint(self) -> str:
        """A hash of all pixels and classes."""
        mark = hashlib.sha256(repr((self.pixels.shape, self.names)).encode())
        mark.update(np.ascontiguousarray(self.labels).tobytes())
        for start in range(0, len(self), 4096):
            mark.update(np.ascontiguousarray(self.pixels[start : start + 4096]).tobytes())
        return mark.hexdigest()

    def batch(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Some images between -1 and 1, and their classes."""
        pixels = normalised(np.asarray(self.pixels[rows]), picture_steps(self.pixels.shape[2], self.colours))
        return torch.from_numpy(pixels), torch.from_numpy(self.labels[rows].astype(np.int64))


def read_images(
    images: Images, size: int, cache: Path, *, side: str = "train", say: Say = lambda line: None
) -> ImageSet:
    """A folder of class folders, IDX files, or arrays (pixels, classes), at `size` x `size`.

    Of data that comes split into train, valid and test, one `side` is read; decoded images are kept in `cache`.
    """
    if isinstance(images, tuple):
        pixels, given = (np.asarray(part) for part in images)
        if given.ndim != 1 or pixels.ndim not in (3, 4) or len(pixels) != len(given) or pixels.dtype != np.uint8:
            raise UserError(f"arrays of shapes {pixels.shape} and {given.shape}", where="images",
                            fix="give uint8 (N, H, W) or (N, H, W, 3), and N classes")  # fmt: skip
        values: Any = pixels
        kinds = given.astype(str).tolist()
    else:
        frame = read_pictures([images] if isinstance(images, str | Path) else list(images))
        if "split" in frame.names:
            sides = frame.column("split").to_pylist()
            frame = frame.take([row for row, name in enumerate(sides) if name == side])
        elif side != "train":
            raise UserError(f"no images to {side}", where="images", fix=f"put some into a folder called {side}")
        values, kinds = frame.column("image"), frame.column("label").to_pylist()
    if len(kinds) < 2:
        raise UserError(f"{len(kinds)} images to learn from", where="images", fix="give a few hundred at least")
    arrays = Arrays.new(cache)
    picture = ImageSettings(size=size, flip=False, crop=0.0, randaugment=0)
    *_, there = picture_arrays(values, Path(), picture, arrays, "pixels", say=say)
    names = sorted(set(kinds))
    labels = np.array([names.index(kind) for kind in kinds])
    pixels = arrays["pixels"]
    return ImageSet(pixels if there.all() else pixels[there], labels[there], names)

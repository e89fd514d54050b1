"""Annotated images as batches: resized to fit a square, padding masked, boxes relative to the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anyformer.data.datasets.arrays import Arrays
from anyformer.data.examples import Draw, Examples
from anyformer.data.files.coco import Annotated, Picture
from anyformer.data.images.decode_all import normalise, picture_steps
from anyformer.data.images.decoding import Unreadable, open_image, plain
from anyformer.data.images.preprocessing import BILINEAR, ImageSteps
from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.objective import IGNORED

MULTIPLE, LARGEST, SLOW = 32, 512, 256  # default side of the square: the images' own size up to one of these limits


@dataclass(frozen=True)
class Square:
    """The layout of images in batches: the longer side fills `size` pixels, from the upper left corner."""

    size: int
    channels: int = 3

    def fitted(self, wide: int, high: int) -> tuple[int, int]:
        """Columns and rows of an image in the square.

        >>> Square(64).fitted(640, 480)
        (64, 48)
        """
        share = self.size / max(wide, high)
        return max(1, round(wide * share)), max(1, round(high * share))

    def pixels(self, picture: Picture) -> np.ndarray:
        """The image as (channels, size, size), padded with black."""
        columns, rows = self.fitted(picture.wide, picture.high)
        with open_image(picture.path, Path()) as image:
            seen = plain(image, self.channels)
            seen = seen if seen.size == (columns, rows) else seen.resize((columns, rows), resample=BILINEAR)
            made = np.asarray(seen)
        room = np.zeros((self.channels, self.size, self.size), np.uint8)
        room[:, :rows, :columns] = made[None] if made.ndim == 2 else np.moveaxis(made, -1, 0)
        return room


def usual_square(pictures: Sequence[Picture], *, slow: bool = False) -> int:
    """The size that shows most images at their own resolution, up to a limit; a lower limit if steps are `slow`.

    >>> usual_square([Picture(1, "a", Path(), 100, 60)]), usual_square([Picture(1, "a", Path(), 2000, 60)])
    (128, 512)
    """
    longer = float(np.median([max(picture.wide, picture.high) for picture in pictures]))
    return int(min(SLOW if slow else LARGEST, math.ceil(longer / MULTIPLE) * MULTIPLE))


def shares(picture: Picture) -> np.ndarray:
    """Class, centre and size of the objects to learn (n,5), relative to the image."""
    learned = ~picture.crowd
    left, top, wide, high = picture.boxes[learned].T
    columns = (picture.kinds[learned], (left + wide / 2) / picture.wide, (top + high / 2) / picture.high,
               wide / picture.wide, high / picture.high)  # fmt: skip
    return np.stack(columns, 1).astype(np.float32)


def put_pictures(found: Annotated, square: Square, arrays: Arrays) -> None:
    """Decode every image once into `arrays`: pixels (N,C,S,S), sides (N,2) in the square, and the objects."""
    room = arrays.room("pixels", (len(found.pictures), square.channels, square.size, square.size), np.uint8)
    for row, picture in enumerate(found.pictures):
        try:
            room[row] = square.pixels(picture)
        except Unreadable as error:
            raise UserError(f"cannot be read ({error})", where=picture.name, fix="repair it, or take it out of the json"
                            ) from None  # fmt: skip
    if isinstance(room, np.memmap):
        room.flush()
    put_objects(found, square, arrays)


def put_objects(found: Annotated, square: Square, arrays: Arrays) -> None:
    """Write everything but the pixels: the sides of each image in the square, and its objects."""
    objects = [shares(picture) for picture in found.pictures]
    fits = [square.fitted(picture.wide, picture.high) for picture in found.pictures]
    arrays.put("sides", np.array(fits, np.int32).reshape(-1, 2))
    arrays.put("objects", np.concatenate(objects))
    arrays.put("objects_starts", np.cumsum([0, *(len(each) for each in objects)]))


@dataclass(frozen=True)
class Window:
    """A crop of an image along one axis, in pixels of the image, resized in place.

    It begins inside the image and may end beyond it; the part beyond is black and masked, like all padding.
    """

    start: float
    length: float

    @classmethod
    def drawn(cls, side: int, share: float, chances: tuple[float, float]) -> Window:
        """Both ends of a side moved by up to a fraction of it: the first inwards, the second either way."""
        start = chances[0] * share * side
        return cls(start, side * (1 + (2 * chances[1] - 1) * share) - start)

    def sources(self, side: int) -> np.ndarray:
        """For each pixel of the result, the nearest pixel of the image."""
        at = np.floor(self.start + (np.arange(side) + 0.5) * self.length / side).astype(np.int64)
        return at[at < side]

    def shares(self, low: np.ndarray, high: np.ndarray, side: int, shown: int) -> tuple[np.ndarray, np.ndarray]:
        """Intervals relative to the image, converted to be relative to the `shown` pixels."""
        moved = [(edge * side - self.start) / self.length * side / shown for edge in (low, high)]
        return moved[0], moved[1]


LEAST_SEEN = 0.25  # minimum fraction of an object's area inside the crop for it to be a target


def move_edges(
    pixels: np.ndarray, sides: np.ndarray, objects: np.ndarray, share: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Move the edges of an image (C,S,S) in place; returns its new sides (2,) and the objects (n,5) still visible."""
    wide, high = (int(side) for side in sides)
    chances = generator.random(4)
    across, down = (Window.drawn(wide, share, (chances[0], chances[1])),
                    Window.drawn(high, share, (chances[2], chances[3])))  # fmt: skip
    columns, rows = across.sources(wide), down.sources(high)
    shown = pixels[:, rows[:, None], columns[None]]
    pixels[:, :high, :wide] = 0
    pixels[:, : len(rows), : len(columns)] = shown
    kinds, x, y, w, h = objects.T
    left, right = across.shares(x - w / 2, x + w / 2, wide, len(columns))
    top, low = down.shares(y - h / 2, y + h / 2, high, len(rows))
    cut = [np.clip(edge, 0, 1) for edge in (left, top, right, low)]
    area = np.maximum((right - left) * (low - top), 1e-12)
    seen = (cut[2] - cut[0]) * (cut[3] - cut[1]) / area >= LEAST_SEEN
    middle_x, middle_y = (cut[0] + cut[2]) / 2, (cut[1] + cut[3]) / 2
    moved = np.stack([kinds, middle_x, middle_y, cut[2] - cut[0], cut[3] - cut[1]], 1).astype(np.float32)
    return np.array([len(columns), len(rows)], sides.dtype), moved[seen]


class DetectionExamples(Examples):
    """One split of annotated images; `rows` are their indices among all images of the file.

    In training, edges are moved by up to the fraction `crop` of a side, and half the images are mirrored if `flip`.
    """

    def __init__(
        self, arrays: Arrays, found: Annotated, rows: np.ndarray, *, steps: ImageSteps | None = None,
        flip: bool = True, crop: float = 0.0,
    ) -> None:  # fmt: skip
        self.arrays, self.found, self.rows = arrays, found, np.asarray(rows, np.int64)
        self.flip, self.crop = flip, crop
        size, channels = arrays["pixels"].shape[-1], arrays["pixels"].shape[1]
        self.steps = steps or picture_steps(size, channels)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Sequence[int] | np.ndarray, draw: Draw | None = None) -> Batch:
        """Pixels (B,C,S,S), a mask over pixels, targets (B,M,5); augmented in training."""
        chosen = np.asarray(rows, np.int64)
        at = self.rows[chosen]
        stored = np.array(self.arrays["pixels"][at])
        sides = np.array(self.arrays["sides"][at])  # (B,2) columns, rows
        objects = [self.objects(row) for row in at.tolist()]
        if draw is not None:
            for place, row in enumerate(chosen.tolist()):
                generator = draw.generator(row)
                if generator.random() < 0.5 and self.flip:
                    wide = sides[place, 0]
                    stored[place, :, :, :wide] = stored[place, :, :, :wide][..., ::-1].copy()
                    objects[place][:, 1] = 1 - objects[place][:, 1]
                if self.crop:
                    sides[place], objects[place] = move_edges(
                        stored[place], sides[place], objects[place], self.crop, generator
                    )
        size = np.arange(stored.shape[-1])
        mask = (size[None, :, None] < sides[:, 1, None, None]) & (size[None, None] < sides[:, 0, None, None])
        pixels = normalise(stored, self.steps) * mask[:, None]  # padding is 0, the mean
        targets = np.full((len(at), max(1, *(len(each) for each in objects)), 5), float(IGNORED), np.float32)
        for place, each in enumerate(objects):
            targets[place, : len(each)] = each
        named = {"source_mask": torch.from_numpy(mask)}
        return Batch((torch.from_numpy(pixels),), torch.from_numpy(targets), torch.from_numpy(chosen.copy()), named)

    def take(self, rows: np.ndarray) -> DetectionExamples:
        return DetectionExamples(
            self.arrays, self.found, self.rows[rows], steps=self.steps, flip=self.flip, crop=self.crop
        )

    def objects(self, row: int) -> np.ndarray:
        """Class, centre and size of one image's objects (n,5)."""
        start, stop = self.arrays["objects_starts"][row : row + 2]
        return np.array(self.arrays["objects"][start:stop])

    def picture(self, row: int) -> Picture:
        """A row's image, with its own size and boxes in pixels."""
        return self.found.pictures[int(self.rows[row])]

    def place(self, row: int) -> str:
        return f"{self.found.file.name} image {self.picture(row).name}"


def detection_examples(
    found: Annotated, folder: Path, *, size: int | None = None, steps: ImageSteps | None = None, flip: bool = True
) -> DetectionExamples:
    """All images of a file as examples, decoded once into a folder of arrays."""
    arrays = Arrays.new(folder)
    put_pictures(found, Square(usual_square(found.pictures) if size is None else size), arrays)
    return DetectionExamples(arrays, found, np.arange(len(found.pictures)), steps=steps, flip=flip)

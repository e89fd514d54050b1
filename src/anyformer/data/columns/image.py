"""Columns of images: decoded once into pixels, compared by them, fitted to a given model."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from anyformer.data.columns.base import Decoded, FileColumn, empty
from anyformer.data.columns.files import recognise_files
from anyformer.data.columns.modality import Encoding, Modality, ModalityInputs
from anyformer.data.columns.values import shown
from anyformer.data.files.data_urls import PICTURES_SAID, example_picture, picture_bytes
from anyformer.data.files.example_files import picture
from anyformer.data.files.image_folders import unlabelled_images
from anyformer.data.files.path_kinds import IMAGES
from anyformer.data.habit import TrainingDefaults
from anyformer.data.images.augmentation import augmented_batch
from anyformer.data.images.decode_all import new_pictures, normalise, picture_arrays, picture_steps
from anyformer.data.images.decoding import pillow
from anyformer.data.images.mirroring import compare_mirrored
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.embeds.conv_stem import ConvStem
from anyformer.embeds.maps import Maps
from anyformer.embeds.patches import Patches
from anyformer.errors import UserError
from anyformer.log import Log
from anyformer.positions import Grid
from anyformer.slots import Backbone, Embed
from anyformer.spec import fields_of

if TYPE_CHECKING:
    from anyformer.data.columns.look import Facts, Scan
    from anyformer.data.datasets.arrays import Arrays
    from anyformer.data.datasets.rows import RowExamples
    from anyformer.data.examples import Draw
    from anyformer.data.frame import Frame
    from anyformer.data.prepared import StartModelConstraints
    from anyformer.data.preprocess import Preprocess
    from anyformer.data.settings import Data
    from anyformer.data.sizes import Sizes

PIXELS = "pixels"  # the array of all images, (N, C, H, W)
BLOCK = 2**22  # bytes hashed at once
MOST_WORKERS = 8


class ImageModality(Modality):
    """The pixels of a row's image."""

    name: ClassVar[str] = "image"
    rank: ClassVar[int] = 30
    embeds: ClassVar[tuple[type[Embed], ...]] = (ConvStem, Patches, Maps)
    presets: ClassVar[tuple[str, ...]] = ("vitc-mini", "vitc-small")
    plural: ClassVar[str] = "images"
    habit: ClassVar[TrainingDefaults | None] = TrainingDefaults(
        epochs=40, batch_size=64, lr=1e-3, weight_decay=0.05, gpu_batch_size=128, gpu_lr=1e-3
    )
    settings: ClassVar[str] = "data.images"
    smoothed: ClassVar[bool] = True

    columns: tuple[Image, ...]

    def encode(self, work: Encoding, preprocess: Preprocess) -> Preprocess:
        if work.train is None:  # training images were decoded before their rows were split
            for column in self.columns:
                there, unread = column.decode_new(work.frame, work.arrays, steps=work.images)
                work.arrays.put("seen", there)
                work.counts.unread |= unread
        return preprocess

    def settle_augmentation(self, arrays: Arrays, train: np.ndarray, settings: Data, log: Log, *, alone: bool) -> Data:
        if settings.images.flip is not None:
            return settings
        (column,) = self.columns
        flip, why = decide_flips(arrays, train, gray=column.channels == 1, alone=alone)
        log(f"image    {'flipped' if flip else 'not flipped'} left-right while training: {why}; "
            f"data.images.flip={'false' if flip else 'true'} changes it")  # fmt: skip
        return settings.replace(images=settings.images.replace(flip=flip))

    def inputs(self, examples: RowExamples, at: np.ndarray, chosen: np.ndarray, draw: Draw | None) -> ModalityInputs:
        """Normalised pixels (B, C, H, W), augmented with a draw, and which rows have an image."""
        arrays = examples.arrays
        stored = arrays[PIXELS][arrays["pictured"][at] if "pictured" in arrays else at]
        if draw is not None and examples.settings is not None:
            stored = augmented_batch(stored, examples.settings.images, draw, chosen)
        pixels = torch.from_numpy(normalise(stored, examples.images or ImageSteps(scale=None, mean=None)))
        seen = arrays["seen"][at] if "seen" in arrays else np.ones(len(at), bool)
        return ModalityInputs((pixels,), torch.from_numpy(np.array(seen, dtype=bool)))

    def sizes(self) -> dict[str, Any]:
        (column,) = self.columns
        return {"image": column.size, "channels": column.channels}

    @classmethod
    def embed(cls, own: Embed | None, sizes: Sizes) -> Embed:
        if isinstance(own, Maps):
            return embed_maps(own, sizes)
        if isinstance(own, Patches):
            return embed_patches(own, sizes)
        stem = own if isinstance(own, ConvStem) else ConvStem(size=32)
        return stem.for_images(sizes.image or stem.size, sizes.channels)

    def features(self, examples: RowExamples, frame: Frame) -> dict[str, Any]:
        if PIXELS not in examples.arrays:
            return {}
        return {"images": np.moveaxis(np.asarray(examples.arrays[PIXELS][examples.rows]), 1, -1)}


def decide_flips(arrays: Arrays, train: np.ndarray, *, gray: bool, alone: bool) -> tuple[bool, str]:
    """Whether training images may be flipped left-right, and why."""
    if not alone:
        return False, "what stands beside an image may speak of left and right"
    classes = classes_of(arrays, train)
    if classes is None:
        return not gray, "gray images may be letters or digits" if gray else "photos have no left and right"
    pictured = arrays["pictured"][train] if "pictured" in arrays else train
    found = compare_mirrored(arrays[PIXELS], pictured, classes)
    how = "as well" if found.is_symmetric else "worse"
    figures = f"{found.mirrored:.0%} right against {found.straight:.0%}"
    return found.is_symmetric, f"a simple classifier reads mirrored images {how} ({figures})"


def classes_of(arrays: Arrays, train: np.ndarray) -> np.ndarray | None:
    """A class for each training row: its own, or whether its target is above the median; None without either."""
    targets = np.asarray(arrays["targets"][train]) if "targets" in arrays else np.zeros(0)
    if targets.ndim != 1 or len(targets) < 2:
        return None
    return targets > np.nanmedian(targets) if targets.dtype.kind == "f" else targets


def embed_patches(embed: Patches, sizes: Sizes) -> Patches:
    """Patches for these images: the preset's if they divide the image into a sensible grid, else about 8 x 8."""
    size = sizes.image or 32
    high, wide = (size, size) if isinstance(size, int) else size
    cell = embed.cell[0]
    if high % cell or wide % cell or not 4 <= high // cell <= 32:
        fits = [n for n in range(1, min(high, wide) + 1) if high % n == 0 and wide % n == 0]
        cell = min(fits, key=lambda n: (abs(high / n - 8), n))
    position = Grid() if isinstance(embed.position, Grid) else embed.position
    return embed.replace(size=size, patch=cell, channels=sizes.channels, position=position, masked=False)


def embed_maps(embed: Maps, sizes: Sizes) -> Maps:
    """Feature maps of these images: the preset's backbone with the data's colour channels."""
    size = sizes.image or embed.size
    position = Grid() if isinstance(embed.position, Grid) else embed.position
    return embed.replace(size=size, backbone=coloured(embed.backbone, size, sizes.channels), position=position)


def coloured(backbone: Backbone, size: int | tuple[int, int], colours: int) -> Backbone:
    """The backbone for that many colour channels; fewer than 4 x 4 cells require the stem for small images."""
    names, changes = fields_of(type(backbone)), dict[str, Any]()
    if "backbone" in names:  # a wrapper, such as visual tokens over a ResNet
        changes["backbone"] = coloured(backbone.backbone, size, colours)  # type: ignore[attr-defined]
    if "colours" in names:
        changes["colours"] = colours
    if "stem" in names and (size if isinstance(size, int) else min(size)) < 4 * backbone.stride:
        changes["stem"] = "small"
    return backbone.replace(**changes)


class Image(FileColumn):
    """A picture: a path, or the bytes of a picture file."""

    kind: ClassVar[str] = "image"
    noun: ClassVar[str] = "an image"
    plural: ClassVar[str] = "images"
    modality: ClassVar[type[Modality]] = ImageModality
    rank: ClassVar[int] = 30
    is_image: ClassVar[bool] = True
    unreadable: ClassVar[str] = "the image cannot be read"
    file_unit: ClassVar[str | None] = "image"

    size: int | None = None  # rows and columns a network sees
    channels: int | None = None

    @classmethod
    def recognise(cls, seen: Scan) -> Facts | None:
        return recognise_files(seen, cls, IMAGES)

    @classmethod
    def decode(
        cls, frame: Frame, name: str, settings: Data, arrays: Arrays, *, given: StartModelConstraints, log: Log
    ) -> Decoded:
        """Decode every image, in parallel, into `arrays["pixels"]` (N, C, H, W)."""
        steps = given.images
        shape, there = picture_arrays(
            frame.column(name), frame.folder, settings.images, arrays, PIXELS, bad=settings.bad, processes=workers(),
            steps=steps, log=lambda line: log(line.removeprefix("images: ")),
        )  # fmt: skip
        size, channels = shape.sides[0], shape.channels
        return Decoded(
            column=cls(name=name, size=size, channels=channels), there=there, broken=~there & ~empty(frame, name),
            same=equal_pixels(arrays[PIXELS]), steps=steps or picture_steps(size, channels, shape.size),
        )  # fmt: skip

    def settle(self, decoded: Decoded, arrays: Arrays, kept: np.ndarray, train: np.ndarray) -> Image:
        arrays.put("pictured", kept)
        arrays.put("seen", decoded.there[kept])
        return self

    def decode_new(
        self, frame: Frame, arrays: Arrays, *, steps: ImageSteps | None
    ) -> tuple[np.ndarray, dict[int, UserError]]:
        """Decode images for a model with a known size: which rows have one, and the errors of unreadable ones."""
        steps = steps or picture_steps(self.size or 0, self.channels or 3)
        cells = frame.column(self.name).to_pylist()
        there, reasons = new_pictures(cells, frame.folder, arrays, PIXELS, steps=steps, processes=workers())
        unread = {}
        for row, reason in reasons.items():
            named = f"{cells[row][-120:]!r}" if isinstance(cells[row], str) else "the image"
            unread[row] = UserError(f"{named} cannot be read ({reason})", where=self.name, fix="give another image")
        return there, unread

    def parse_value(self, value: Any) -> str | bytes:
        """A path or the contents of an image file; pixels in memory become lossless file contents."""
        if isinstance(value, str | os.PathLike):
            return os.fspath(value)
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        try:
            return image_bytes(value)
        except (TypeError, ValueError, OSError):
            fix = "give a path, the bytes of a file, or uint8 pixels (height, width[, 3])"
            raise UserError(f"{shown(value)} is not an image", where=self.name, fix=fix) from None

    @classmethod
    def files_in(cls, paths: Sequence[Path]) -> list[str] | None:
        return unlabelled_images(paths)

    @property
    def request_noun(self) -> str:
        return f"{self.noun} as {PICTURES_SAID}"

    def from_request(self, value: Any) -> bytes:
        return picture_bytes(value, self.name)

    def example(self) -> str:
        return example_picture()

    def worth_looking_at(self) -> Any:
        return picture()


def workers() -> int:
    return min(MOST_WORKERS, os.cpu_count() or 1)


def equal_pixels(pixels: np.ndarray) -> np.ndarray:
    """Codes (N,), equal for images whose pixels are all equal."""
    flat = pixels.reshape(len(pixels), -1)
    factors = np.random.default_rng(0).integers(1, 2**63, flat.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    marks = np.zeros(len(flat), np.uint64)
    step = max(1, BLOCK // max(1, 8 * flat.shape[1]))
    for start in range(0, len(flat), step):
        block = flat[start : start + step].astype(np.uint64) + np.uint64(1)
        marks[start : start + step] = (block * factors).sum(1, dtype=np.uint64)
    return np.unique(marks, return_inverse=True)[1].reshape(-1)


def image_bytes(value: Any) -> bytes:
    """Encode pixels of pillow or numpy losslessly; ValueError or TypeError if they are not an image."""
    module = pillow()
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim not in (2, 3) or (value.ndim == 3 and value.shape[2] not in (1, 3, 4)):
            raise ValueError("no uint8 pixels")
        value = module.fromarray(value[:, :, 0] if value.ndim == 3 and value.shape[2] == 1 else value)
    if not isinstance(value, module.Image):
        raise TypeError("no pixels")
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(value)  # EXIF orientation is not stored in every format
    sink = io.BytesIO()
    upright.save(sink, "TIFF" if upright.mode in ("CMYK", "F", "YCbCr", "LAB") else "PNG")
    return sink.getvalue()

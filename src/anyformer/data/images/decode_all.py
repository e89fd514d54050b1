"""Images for training: every image decoded once into an array, from files or IDX arrays."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyformer.amounts import megabytes
from anyformer.data.datasets.arrays import Arrays
from anyformer.data.files.idx import read_idx
from anyformer.data.files.image_folders import read_pictures
from anyformer.data.images.decoding import ImageShape, locate_image, pixels
from anyformer.data.images.preprocessing import BILINEAR, ImageSteps
from anyformer.data.images.workers import decode, look, map_in_workers
from anyformer.data.settings import ImageSettings
from anyformer.errors import UserError
from anyformer.log import Log

__all__ = ["normalise", "picture_arrays", "picture_steps", "read_pictures"]

OWN = 64  # images of equal size up to this side are not resized
STEPS = ((160, 224), (80, 96), (48, 64), (0, 32))  # typical side from which on, and the network's input size


def picture_steps(size: int, channels: int, resized: int | tuple[int, int] | None = None) -> ImageSteps:
    """The preprocessing of new images for a model trained here, to be saved with it; `resized` if images are padded to
    that size rather than cropped."""
    half = (0.5,) * channels
    return ImageSteps(
        size=resized or size, crop=(size, size), resample=BILINEAR, mean=half, std=half, convert=channels == 3,
        kind="CLIPImageProcessor",
    )  # fmt: skip


def normalise(stored: np.ndarray, steps: ImageSteps) -> np.ndarray:
    """Stored pixels (B, C, H, W) normalised to float32, bit for bit equal to the steps after their crop."""
    levels = np.arange(256)
    table = levels.astype(np.float32) if steps.scale is None else (levels * float(steps.scale)).astype(np.float32)
    channels = stored.shape[1]
    tables = np.repeat(table[None], channels, 0)
    if steps.mean is not None and steps.std is not None:
        mean, std = (np.array(values, np.float32)[:, None] for values in (steps.mean, steps.std))
        tables = (tables - mean) / std
    made = np.empty(stored.shape, np.float32)
    for channel in range(channels):
        np.take(tables[channel], stored[:, channel], out=made[:, channel])
    return made


def picture_arrays(
    values: Any,
    folder: Path,
    settings: ImageSettings,
    arrays: Arrays,
    name: str,
    *,
    log: Log,
    bad: Literal["skip", "error"] = "skip",
    processes: int = 1,
    steps: ImageSteps | None = None,
) -> tuple[ImageShape, np.ndarray]:
    """Decode every image into `arrays[name]` (N, C, H, W); returns how pixels were made and which rows have an image.

    A value is a path (relative to `folder`), `file#n` inside an IDX file, the contents of an image file, an array or
    missing. An unreadable one is reported, then skipped or an error; a missing one is merely absent. `steps` are those
    of a model that the images must fit.
    """
    given = list(values) if isinstance(values, np.ndarray) else list_cells(values)
    there = [row for row, value in enumerate(given) if not missing(value)]
    groups = idx_groups(given, there, folder)
    troubles: dict[int, str] = {}
    heads: dict[int, tuple[int, int, bool]] = {}
    if groups is not None:
        for images, rows, _ in groups:
            heads |= dict.fromkeys(rows.tolist(), (images.shape[2], images.shape[1], images.ndim == 3))
    else:
        sort(there, map_in_workers(look, [given[row] for row in there], folder, processes), heads.__setitem__, troubles)
    if troubles and (bad == "error" or not heads):
        raise unreadable_error(troubles, given)
    if not heads and steps is None:  # for a model of known size all rows may lack an image
        raise UserError("no images", where=name, fix="give paths of images")
    while True:
        shape = shape_of(list(heads.values()), settings, steps)
        room = arrays.room(name, (len(given), shape.channels, *shape.sides), np.uint8)
        if groups is not None:
            for images, rows, numbers in groups:
                copy_idx(images, rows, numbers, shape, room)
        else:
            todo, work = sorted(heads), partial(decode, shape=shape)
            sort(
                todo, map_in_workers(work, [given[row] for row in todo], folder, processes), room.__setitem__, troubles
            )
        if troubles and (bad == "error" or len(troubles) == len(there)):
            raise unreadable_error(troubles, given)
        heads = {row: head for row, head in heads.items() if row not in troubles}
        # An unreadable image must not influence the size; it seldom does.
        if shape == shape_of(list(heads.values()), settings, steps):
            break
    ok = np.zeros(len(given), bool)
    ok[list(heads)] = True
    if isinstance(room, np.memmap):
        room.flush()
    if heads:
        log_images(log, list(heads.values()), shape, troubles, given, len(given) - len(there), room.nbytes)
    return shape, ok


def new_pictures(
    cells: list[Any], folder: Path, arrays: Arrays, name: str, *, steps: ImageSteps, processes: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Decode images for a model of known size into `arrays[name]`: which rows have one, and why others do not."""
    there = [row for row, cell in enumerate(cells) if not missing(cell)]
    shape = shape_of([], ImageSettings(), steps)
    room = arrays.room(name, (len(cells), shape.channels, *shape.sides), np.uint8)
    reasons: dict[int, str] = {}
    groups = idx_groups(cells, there, folder)
    if groups is not None:
        for images, rows, numbers in groups:
            copy_idx(images, rows, numbers, shape, room)
    else:
        made = map_in_workers(partial(decode, shape=shape), [cells[row] for row in there], folder, processes)
        sort(there, made, room.__setitem__, reasons)
    if isinstance(room, np.memmap):
        room.flush()
    seen = np.zeros(len(cells), bool)
    seen[[row for row in there if row not in reasons]] = True
    return seen, reasons


def sort(
    rows: Sequence[int], results: Iterable[Any], keep: Callable[[int, Any], None], troubles: dict[int, str]
) -> None:
    """Keep the result of each row; a string is the reason of a failure."""
    for row, made in zip(rows, results, strict=True):
        if isinstance(made, str):
            troubles[row] = made
        else:
            keep(row, made)


def list_cells(values: Any) -> list[Any]:
    """Cells of an Arrow column, or any other sequence, as Python values."""
    import pyarrow as pa

    return values.to_pylist() if isinstance(values, pa.ChunkedArray | pa.Array) else list(values)


def missing(value: Any) -> bool:
    return value is None or (isinstance(value, str | bytes) and not value)


# ---------------------------------------------------------------- sizes


def shape_of(heads: Sequence[tuple[int, int, bool]], settings: ImageSettings, steps: ImageSteps | None) -> ImageShape:
    """The shape of the decoded pixels: as a given model, the settings, or the images require."""
    if steps is not None:
        if isinstance(steps.size, int) and steps.crop is None:
            raise UserError("pictures would come out in different sizes", where="images", fix="set a crop")
        if steps.size is None and steps.crop is None:
            raise UserError("the model takes pictures of any size", where="images", fix="set its size")
        return ImageShape(steps.size, steps.crop, steps.resample, 3 if steps.mean is None else len(steps.mean))
    channels = settings.channels or (1 if all(gray for _, _, gray in heads) else 3)
    sizes = [(wide, high) for wide, high, _ in heads]
    if settings.size is None and are_small(sizes):
        # Kept whole in a zero-padded square: a crop to the shorter side would lose most of a line of digits.
        (wide, high), side = sizes[0], max(sizes[0])
        return ImageShape(side if wide == high else (high, wide), (side, side), BILINEAR, channels)
    size = settings.size or usual_size(sizes)
    return ImageShape(size, (size, size), BILINEAR, channels)


def are_small(sizes: Sequence[tuple[int, int]]) -> bool:
    """Whether all images have the same size, small enough to keep."""
    return len(set(sizes)) == 1 and min(sizes[0]) >= 4 and max(sizes[0]) <= OWN


def usual_size(sizes: Sequence[tuple[int, int]]) -> int:
    """The input size that is closest to most images.

    >>> usual_size([(640, 480), (500, 300)]), usual_size([(40, 30), (33, 60)])
    (224, 32)
    """
    side = statistics.median(min(size) for size in sizes)
    return next(size for least, size in STEPS if side >= least)


# ---------------------------------------------------------------- IDX


def idx_groups(
    values: list[Any], there: list[int], folder: Path
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]] | None:
    """Images, rows and indices for each IDX file, if all values are like `train-images-idx3-ubyte#17` (from 0)."""
    first = values[there[0]] if there else None
    if not isinstance(first, str) or "#" not in first or os.path.lexists(locate_image(first, folder)):
        return None
    found: dict[str, list[tuple[int, int]]] = {}
    for row in there:
        name, _, number = values[row].rpartition("#") if isinstance(values[row], str) else ("", "", "")
        if not name or not number.isdecimal():
            return None
        found.setdefault(name, []).append((row, int(number)))
    groups = []
    for name, pairs in found.items():
        images, (rows, numbers) = read_idx(locate_image(name, folder)), np.array(pairs).T
        if images.ndim < 3 or int(numbers.max()) >= len(images):
            raise UserError(f"no image {numbers.max()} in it", where=Path(name).name, fix="give the file of images")
        groups.append((images, rows, numbers))
    return groups


def copy_idx(images: np.ndarray, rows: np.ndarray, numbers: np.ndarray, shape: ImageShape, room: np.ndarray) -> None:
    """Copy the bytes if they have the right shape, else convert each image."""
    if images.shape[1:] == shape.sides and shape.channels == 1:
        for at in range(0, len(rows), 4096):
            room[rows[at : at + 4096], 0] = images[numbers[at : at + 4096]]
        return
    for row, number in zip(rows, numbers, strict=True):
        room[row] = pixels(np.asarray(images[number]), Path(), shape)


# ---------------------------------------------------------------- what people read


def show_name(value: Any, row: int) -> str:
    """An image's name in messages."""
    return str(value)[-120:] if isinstance(value, str | os.PathLike) else f"image {row + 1}"


def unreadable_error(troubles: dict[int, str], values: list[Any]) -> UserError:
    """One error for all unreadable images."""
    first, reason = min(troubles.items())
    more = f", and {len(troubles) - 1:,} images more" if len(troubles) > 1 else ""
    return UserError(
        f"cannot be read ({reason}){more}", where=show_name(values[first], first),
        fix="repair or remove it" if len(troubles) == len(values) else "repair or remove it, or data.bad=skip",
        details=[f"{show_name(values[row], row)}: {why}" for row, why in sorted(troubles.items())],
    )  # fmt: skip


def log_images(
    log: Log, heads: list[tuple[int, int, bool]], shape: ImageShape, troubles: dict[int, str], values: list[Any],
    none: int, size: int,
) -> None:  # fmt: skip
    """Log what was found and decided."""
    sides = sorted({(wide, high) for wide, high, _ in heads})
    if len(sides) == 1:
        what = f"all {sides[0][0]} x {sides[0][1]}"
    else:
        wide, high = [w for w, _ in sides], [h for _, h in sides]
        what = f"{min(wide)} to {max(wide)} wide, {min(high)} to {max(high)} high"
    rows, columns = shape.sides
    padded = isinstance(shape.size, tuple) and shape.crop is not None and shape.size != shape.crop
    how = "padded" if padded and sides == [(shape.size[1], shape.size[0])] else "resized and cropped"  # type: ignore[index]
    kept = "" if sides == [(columns, rows)] else f"; {how} to {columns} x {rows}"
    colour = "gray" if shape.channels == 1 else "colour"
    log(f"images: {len(heads):,}, {what}, {colour}{kept}; {megabytes(size)} on disk")
    if none:
        log(f"{none:,} rows have no image")
    if troubles:
        named = [f"{show_name(values[row], row)} ({why})" for row, why in sorted(troubles.items())[:3]]
        log(f"skipped {len(troubles):,} images that cannot be read: {', '.join(named)}{', ...' * (len(troubles) > 3)}")

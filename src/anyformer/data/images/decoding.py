"""Decoding one image file into pixels, or the reason why not: bounded in size and time, whatever it contains.

Worker processes import this file, so it must stay light: no torch.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

# Only formats decoded in this process; EPS, for one, would start another program.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "ICO", "AVIF", "JPEG2000", "TGA")
MOST_PIXELS = 2**26  # three bytes each, several copies of which fit into one gigabyte
MOST_BYTES = 2**29
MOST_RATIO = 64  # of the longer side to the shorter: beyond, a centre crop shows nothing, and resizing exhausts memory
GRAY = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N")


class Unreadable(Exception):
    """Why an image cannot be used, briefly."""


@dataclass(frozen=True)
class ImageShape:
    """The shape of pixels: a resize (an int is the shorter side) and a crop to (rows, columns)."""

    size: int | tuple[int, int] | None
    crop: tuple[int, int] | None
    resample: int
    channels: int

    @property
    def sides(self) -> tuple[int, int]:
        """Final rows and columns."""
        last = self.crop if self.crop is not None else self.size
        assert isinstance(last, tuple)
        return last


def looked_at(value: Any, folder: Path) -> tuple[int, int, bool]:
    """Width, height and whether it is grayscale, from the file's header alone."""
    with open_image(value, folder) as image:
        return *upright_size(image), image.mode in GRAY


def pixels(value: Any, folder: Path, shape: ImageShape) -> np.ndarray:
    """The image as (channels, rows, columns) in uint8."""
    with open_image(value, folder) as image:
        made = np.asarray(fit_to_shape(plain(image, shape.channels), shape))
    return np.ascontiguousarray(made[None] if made.ndim == 2 else np.moveaxis(made, -1, 0))


# ---------------------------------------------------------------- opening


@contextmanager
def open_image(value: Any, folder: Path, formats: Sequence[str] = FORMATS) -> Iterator[Image]:
    """Open an image and read its header; any error inside is raised as `Unreadable`."""
    module = pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a large image is decided on below, and odd metadata is not used
            if isinstance(value, module.Image):
                yield check_sides(value)
                return
            if isinstance(value, np.ndarray):
                yield check_sides(module.fromarray(value))
                return
            source = io.BytesIO(value) if isinstance(value, bytes) else present(locate_image(value, folder))
            module.init()  # loads all formats, which an open with given formats does not
            with module.open(source, formats=[name for name in formats if name in module.OPEN]) as image:
                yield check_sides(image)
    except Unreadable:
        raise
    except module.UnidentifiedImageError:
        raise Unreadable("not a picture") from None
    except module.DecompressionBombError:
        raise Unreadable("too many pixels") from None
    except MemoryError:
        raise Unreadable("too large for the memory") from None
    except (OSError, ValueError, SyntaxError, TypeError, KeyError, IndexError, EOFError, OverflowError) as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise Unreadable(reason) from None
    except Exception as error:  # decoders raise any exception (struct.error, zlib.error, AttributeError, ...)
        raise Unreadable(f"damaged ({type(error).__name__})") from None


def pillow() -> Any:
    """pillow's Image module, imported on first use."""
    require("PIL", "pictures need")
    from PIL import Image

    return Image


def locate_image(value: Any, folder: Path) -> Path:
    """A path in a table, relative to the table's folder, else to the working directory."""
    if not isinstance(value, str | os.PathLike):
        raise Unreadable(f"{type(value).__name__} instead of a path")
    path = Path(value)
    if "\0" in str(path):
        raise Unreadable("not a path")
    beside = folder / path
    return beside if path.is_absolute() or os.path.lexists(beside) else path


def present(path: Path) -> Path:
    """The path, if it is a regular file of bounded size."""
    if not path.exists():
        raise Unreadable("a link to nothing" if path.is_symlink() else "no such file")
    if path.is_dir():
        raise Unreadable("a folder")
    if not path.is_file():
        raise Unreadable("not a plain file")
    size = path.stat().st_size
    if not size:
        raise Unreadable("empty file")
    if size > MOST_BYTES:
        raise Unreadable(f"{size:,} bytes are too many for one picture")
    return path


def check_sides(image: Image) -> Image:
    """The image, if its sides allow decoding and use."""
    wide, high = image.size
    if wide < 1 or high < 1:
        raise Unreadable("no pixels")
    if wide * high > MOST_PIXELS:
        raise Unreadable(f"{wide:,} x {high:,} pixels are too many")
    if max(wide, high) > MOST_RATIO * min(wide, high):
        raise Unreadable(f"{wide:,} x {high:,} pixels are out of proportion")
    return image


# ---------------------------------------------------------------- colours


def upright_size(image: Image) -> tuple[int, int]:
    """Width and height after EXIF rotation."""
    turned = image.getexif().get(0x0112) in (5, 6, 7, 8)
    return (image.size[1], image.size[0]) if turned else image.size


def plain(image: Image, channels: int) -> Image:
    """The first frame upright, in grayscale or RGB, on white if transparent, 16 bits reduced to 8."""
    from PIL import ImageOps

    image.load()  # only the first of several frames
    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I") or turned.mode == "F":
        turned = pillow().fromarray(eight_bits(np.asarray(turned)))
    elif turned.has_transparency_data:
        above = turned.convert("RGBA")
        turned = pillow().alpha_composite(pillow().new("RGBA", above.size, (255, 255, 255, 255)), above)
    wanted = "L" if channels == 1 else "RGB"
    return turned if turned.mode == wanted else turned.convert(wanted)


def eight_bits(values: np.ndarray) -> np.ndarray:
    """High bit-depth grayscale as 0 to 255: integers are scaled from 16 bits if needed, floats multiplied by 255."""
    if np.issubdtype(values.dtype, np.floating):
        values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
        high = float(values.max())
        factor = 255.0 if high <= 1 else 1.0 if high <= 255 else 255.0 / high
    else:
        high = int(values.max())
        factor = 1.0 if values.dtype.itemsize > 2 and high <= 255 else 255.0 / max(65535, high)
    return np.clip(np.rint(values.astype(np.float64) * factor), 0, 255).astype(np.uint8)


# ---------------------------------------------------------------- sizes


def fit_to_shape(image: Image, shape: ImageShape) -> Image:
    """Resize and crop to the same pixels as ImageSteps."""
    wide, high = image.size
    if shape.size is not None:
        if isinstance(shape.size, int):
            longer = int(shape.size * max(wide, high) / min(wide, high))
            rows, columns = (longer, shape.size) if wide <= high else (shape.size, longer)
        else:
            rows, columns = shape.size
        image = image.resize((columns, rows), resample=shape.resample)
    if shape.crop is None:
        return image
    rows, columns = shape.crop
    wide, high = image.size
    # A small image is padded with zeros, the odd row or column before.
    left, top = (wide - columns) // 2, (high - rows) // 2
    return image.crop((left, top, left + columns, top + rows))

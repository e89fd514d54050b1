"""Image preprocessing of a pretrained model: resize, crop, rescale, normalise (preprocessor_config.json).

The arithmetic is that of transformers' PIL image processors, step by step and dtype by dtype, so that a model gets
exactly the same inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anyformer.errors import UserError, did_you_mean
from anyformer.extras import require
from anyformer.safe_files import read_json

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "preprocessor_config.json"
NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)  # pillow's constants, which are also the file's
FILTERS = {"nearest": NEAREST, "lanczos": LANCZOS, "bilinear": BILINEAR, "bicubic": BICUBIC, "box": BOX,
           "hamming": HAMMING}  # fmt: skip
Pixels = NDArray[Any]

HALF = (0.5, 0.5, 0.5)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class ImageSteps:
    """Preprocessing steps of an image, in the order of the fields; None skips a step.

    `size` and `crop` are (rows, columns); an integer `size` is the length of the shorter side, keeping the aspect
    ratio. `mean` and `std` have one number per channel.

    >>> steps = ImageSteps(size=(8, 8))
    >>> steps([np.zeros((5, 7, 3), np.uint8), np.ones((9, 9, 3), np.uint8)]).shape
    torch.Size([2, 3, 8, 8])
    """

    size: int | tuple[int, int] | None = (224, 224)
    resample: int = BILINEAR
    crop: tuple[int, int] | None = None
    scale: float | None = 1 / 255
    mean: tuple[float, ...] | None = HALF
    std: tuple[float, ...] | None = HALF
    convert: bool | None = None  # to RGB on white if transparent; None: only if the number of channels differs
    kind: str = "ViTImageProcessor"  # the class of transformers that reads it
    unused: Mapping[str, Any] = field(default_factory=dict)  # settings of disabled steps

    def __call__(self, pictures: Any) -> Tensor:
        """One or several images (paths, PIL images, arrays or tensors) to (B, channels, H, W) in float32."""
        made = [self.one(picture) for picture in flat(pictures)]
        shapes = sorted({pixels.shape for pixels in made})
        if len(shapes) > 1:
            raise UserError(f"pictures come out in sizes {shapes[0][1:]} and {shapes[1][1:]}", where="images",
                            fix="set crop, or size to rows and columns, to make them equal")  # fmt: skip
        return torch.from_numpy(np.stack(made).astype(np.float32))

    def one(self, picture: Any) -> Pixels:
        """One image to (channels, H, W)."""
        pixels = self.channels(picture)
        if self.size is not None:
            pixels = resize_pixels(pixels, target(pixels, self.size), self.resample)
        if self.crop is not None:
            pixels = crop_middle(pixels, self.crop)
        if self.scale is not None:
            pixels = (pixels.astype(np.float64) * self.scale).astype(np.float32)
        if self.mean is not None and self.std is not None:
            pixels = pixels if np.issubdtype(pixels.dtype, np.floating) else pixels.astype(np.float32)
            mean, std = (np.array(values, pixels.dtype)[:, None, None] for values in (self.mean, self.std))
            if len(self.mean) != len(pixels):
                wanted = f"expected {len(self.mean)}"
                raise UserError(f"a picture has {len(pixels)} channels", where="images", fix=wanted)
            pixels = (pixels - mean) / std
        return pixels

    def channels(self, picture: Any) -> Pixels:
        """An image as (channels, H, W), in RGB unless the settings have another number of channels."""
        image_module = pillow()
        if isinstance(picture, str | Path):
            picture = load_image(Path(picture))
        count = 3 if self.mean is None or self.convert else len(self.mean)
        if isinstance(picture, image_module.Image):
            if self.convert:
                return np.moveaxis(np.array(on_white(picture)), -1, 0)
            kinds = {1: "L", 3: "RGB", 4: "RGBA"}
            bands = np.array(picture if picture.mode == kinds.get(count) else picture.convert(kinds.get(count, "RGB")))
            return bands[None] if bands.ndim == 2 else np.moveaxis(bands, -1, 0)
        pixels = picture.detach().cpu().numpy() if isinstance(picture, Tensor) else picture
        if not isinstance(pixels, np.ndarray):
            raise UserError(f"a picture is {type(picture).__name__}", where="images",
                            fix="give a path, a PIL image, an array or a tensor")  # fmt: skip
        pixels = channels_first(pixels)
        return pixels if len(pixels) == count else convert_to_rgb(pixels) if count == 3 else pixels

    # ------------------------------------------------------------ the file

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, kind: str | None = None, where: str = FILE) -> ImageSteps:
        """The steps in a preprocessor_config.json; `kind` is the processor class if the file names none.

        Missing options have the defaults of transformers' class; unknown ones are rejected by name.
        """
        if isinstance(data.get("image_processor"), Mapping):  # a processor for text and images nests them
            data = data["image_processor"]
        said = data.get("image_processor_type") or data.get("feature_extractor_type") or kind or ""
        named = str(said).replace("FeatureExtractor", "ImageProcessor").removesuffix("Fast").removesuffix("Pil")
        if named == DETR:
            return cls.of_detector(data, where)
        if named not in DEFAULTS:
            raise UserError(f"image processor {said!r} is not known", where=where, fix=did_you_mean(named, DEFAULTS))
        unknown = [name for name in data if name not in OPTIONS and name not in IRRELEVANT]
        if unknown:
            raise UserError(f"option {unknown[0]!r} is not known", where=where, fix=did_you_mean(unknown[0], OPTIONS))
        given = {name: value for name, value in data.items() if value is not None}
        return Reader(OPTIONS | DEFAULTS[named] | given, where).steps(named)

    @classmethod
    def of_timm(cls, given: Mapping[str, Any], where: str) -> ImageSteps:
        """timm's preprocessing: the `pretrained_cfg` of its config.json.

        The image is resized so that the input size is its centre crop by `crop_pct`.
        """
        size = given.get("input_size", (3, 224, 224))
        filter_named, share = given.get("interpolation", "bicubic"), given.get("crop_pct", 0.875)
        if not isinstance(size, list | tuple) or len(size) != 3 or not all(type(s) is int and s > 0 for s in size):
            raise UserError(f"input_size is {size!r}", where=where, fix="expected [3, 224, 224]")
        if filter_named not in FILTERS:
            raise UserError(f"interpolation is {filter_named!r}", where=where, fix=did_you_mean(filter_named, FILTERS))
        if not isinstance(share, int | float) or not 0 < share <= 1:
            raise UserError(f"crop_pct is {share!r}", where=where, fix="expected a share such as 0.9")
        if given.get("crop_mode", "center") != "center" or size[1] != size[2]:
            raise UserError("only the middle square of a picture is implemented", where=where,
                            fix='expected crop_mode "center" and a square input_size')  # fmt: skip
        colours = {name: given.get(short, HALF) for name, short in (("image_mean", "mean"), ("image_std", "std"))}
        plain = OPTIONS | STEPS | colours | {
            "size": {"shortest_edge": int(size[1] / share)}, "resample": FILTERS[filter_named],
            "do_center_crop": True, "crop_size": {"height": size[1], "width": size[2]},
        }  # fmt: skip
        return Reader(plain, where).steps("BitImageProcessor")

    @classmethod
    def of_detector(cls, data: Mapping[str, Any], where: str) -> ImageSteps:
        """DETR's file: only rescaling and normalisation are used; batches apply sizes and padding, which are kept
        aside."""
        used = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std")
        given = {name: data[name] for name in used if data.get(name) is not None}
        kept = {name: value for name, value in data.items() if name not in used and name not in IRRELEVANT}
        made = Reader(OPTIONS | IMAGENET | given, where).steps(DETR)
        return replace(made, unused={"do_resize": True} | kept)

    def to_dict(self) -> dict[str, Any]:
        """The settings in transformers' format."""
        switch = False if "do_center_crop" in DEFAULTS.get(self.kind, {}) else None  # some classes have no such step
        steps: dict[str, Any] = {
            "do_resize": self.size is not None,
            "size": {"shortest_edge": self.size} if isinstance(self.size, int) else sides(self.size),
            "resample": self.resample,
            "do_center_crop": True if self.crop else switch, "crop_size": sides(self.crop),
            "do_rescale": self.scale is not None, "rescale_factor": self.scale,
            "do_normalize": self.mean is not None,
            "image_mean": None if self.mean is None else list(self.mean),
            "image_std": None if self.std is None else list(self.std),
            "do_convert_rgb": self.convert,
        }  # fmt: skip
        kept = {name: value for name, value in (steps | dict(self.unused)).items() if value is not None}
        return {"image_processor_type": self.kind} | kept

    @classmethod
    def read(cls, path: str | Path, *, kind: str | None = None) -> ImageSteps:
        """The steps of a preprocessor_config.json."""
        path = Path(path)
        data = read_json(path)
        return cls.from_dict(data, kind=kind, where=path.name)

    def save(self, folder: str | Path) -> Path:
        """Write preprocessor_config.json into a folder."""
        path = Path(folder) / FILE
        path.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        return path

    def resized(self, size: int | tuple[int, int]) -> ImageSteps:
        """The same steps for a model with another input size; a crop keeps its fraction of the image."""
        new = (size, size) if isinstance(size, int) else size
        if self.crop is None or self.size is None:
            return replace(self, size=new if self.crop is None else self.size, crop=None if self.crop is None else new)
        if isinstance(self.size, int):
            return replace(self, size=round(self.size * max(new[0] / self.crop[0], new[1] / self.crop[1])), crop=new)
        grown = tuple(round(whole * to / part) for whole, to, part in zip(self.size, new, self.crop, strict=True))
        return replace(self, size=(grown[0], grown[1]), crop=new)


# Every option that changes pixels, with the default of transformers' base class.
OPTIONS: dict[str, Any] = {
    "do_resize": None, "size": None, "resample": BILINEAR, "default_to_square": True,
    "do_center_crop": None, "crop_size": None, "do_rescale": None, "rescale_factor": 1 / 255,
    "do_normalize": None, "image_mean": None, "image_std": None, "do_convert_rgb": None, "do_pad": None,
    "pad_size": None, "data_format": "channels_first", "input_data_format": None,
}  # fmt: skip
IRRELEVANT = {  # names, devices, and output formats
    "image_processor_type", "feature_extractor_type", "processor_class", "_processor_class", "_valid_processor_keys",
    "model_input_names", "device", "return_tensors", "disable_grouping", "image_seq_length", "auto_map",
    "transformers_version",
}  # fmt: skip
STEPS = {"do_resize": True, "do_rescale": True, "do_normalize": True}
CROPPED = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}, "resample": BICUBIC}
PLAIN = STEPS | {"image_mean": list(HALF), "image_std": list(HALF)}
OPENAI = STEPS | CROPPED | {"image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD), "do_convert_rgb": True,
                            "size": {"shortest_edge": 224}, "default_to_square": False}  # fmt: skip
DETR = "DetrImageProcessor"
IMAGENET = {
    "do_rescale": True,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": PLAIN | {"size": {"height": 224, "width": 224}},
    "DeiTImageProcessor": PLAIN | CROPPED | {"size": {"height": 256, "width": 256}},
    "CLIPImageProcessor": OPENAI,
    "BitImageProcessor": OPENAI,  # used by DINOv2's folders
}


class Reader:
    """The options of one file, validated while they are read."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def steps(self, kind: str) -> ImageSteps:
        if self.on("do_pad"):
            raise self.refused("do_pad", "is not implemented", "remove it, or crop instead")
        if self.data["data_format"] not in ("channels_first", "ChannelDimension.FIRST"):
            raise self.refused("data_format", "is not implemented", "networks here take channels first")
        if self.data["input_data_format"] is not None:
            raise self.refused("input_data_format", "is not implemented", "remove it; the shape says it")
        if self.data["resample"] not in range(6):
            raise self.refused("resample", "is not a filter", "expected 0 to 5, pillow's numbers")
        resize, crop = self.on("do_resize"), self.on("do_center_crop")
        rescale, normal = self.on("do_rescale"), self.on("do_normalize")
        mean, std = (self.numbers(name) if normal else None for name in ("image_mean", "image_std"))
        if mean is not None and std is not None and (len(mean) != len(std) or 0.0 in std):
            raise self.refused("image_std", "does not fit image_mean", "give one number a channel, none of them 0")
        on = {"size": resize, "crop_size": crop, "rescale_factor": rescale, "image_mean": normal, "image_std": normal}
        unused = {name: self.data[name] for name, used in on.items() if not used}
        convert = self.data["do_convert_rgb"]
        size = self.shape("size", square=self.data["default_to_square"]) if resize else None
        edge = self.shape("crop_size") if crop else None
        if isinstance(edge, int):
            raise self.refused("crop_size", "has no height and width", 'write {"height": 224, "width": 224}')
        return ImageSteps(
            size=size, resample=self.data["resample"], crop=edge,
            scale=self.number("rescale_factor") if rescale else None, mean=mean, std=std,
            convert=None if convert is None else self.on("do_convert_rgb"), kind=kind, unused=unused,
        )  # fmt: skip

    def refused(self, name: str, why: str, fix: str) -> UserError:
        return UserError(f"{name} = {self.data[name]!r} {why}", where=self.where, fix=fix)

    def on(self, name: str) -> bool:
        value = self.data[name]
        if value not in (None, True, False):
            raise self.refused(name, "is not true or false", "expected true or false")
        return bool(value)

    def number(self, name: str) -> float:
        value = self.data[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(name, "is not a number", "expected a number like 0.00392156862745098")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        """One number per channel; a single number is repeated three times."""
        value = self.data[name]
        given = list(value) if isinstance(value, list | tuple) else [value] * 3
        if not given or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in given):
            raise self.refused(name, "are not numbers", "expected one number a channel")
        return tuple(float(v) for v in given)

    def shape(self, name: str, *, square: bool = True) -> int | tuple[int, int]:
        """Rows and columns, or the length of the shorter side."""
        value = self.data[name]
        if isinstance(value, int) and not isinstance(value, bool):
            value = {"height": value, "width": value} if square else {"shortest_edge": value}
        elif isinstance(value, list | tuple) and len(value) == 2:
            value = {"height": value[0], "width": value[1]}
        named = {key: v for key, v in value.items() if v is not None} if isinstance(value, Mapping) else {}
        if not named or not all(type(v) is int and 0 < v < 2**16 for v in named.values()):
            raise self.refused(
                name, "is not a size", 'expected {"height": 224, "width": 224} or {"shortest_edge": 224}'
            )
        if set(named) == {"height", "width"}:
            return named["height"], named["width"]
        if set(named) == {"shortest_edge"}:
            return named["shortest_edge"]
        raise self.refused(name, "is not implemented", 'use {"height": 224, "width": 224} or {"shortest_edge": 224}')


# ---------------------------------------------------------------- pictures


def pillow() -> Any:
    """pillow's Image module, imported on first use."""
    require("PIL", "pictures need")
    from PIL import Image

    return Image


def load_image(path: Path) -> Image:
    """Load an image file in RGB, rotated by its EXIF orientation."""
    module = pillow()
    from PIL import ImageOps

    try:
        with module.open(path) as image:
            return ImageOps.exif_transpose(image).convert("RGB")
    except FileNotFoundError:
        raise UserError("no such image", where=str(path), fix="give the path of an image file") from None
    except (OSError, ValueError, SyntaxError, module.DecompressionBombError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"not a picture ({reason})", where=path.name, fix="give a PNG, JPEG or WebP file") from None


def flat(pictures: Any) -> list[Any]:
    """One image, a batch in one array, or a list of them, as a list."""
    if isinstance(pictures, np.ndarray | Tensor):
        return list(pictures) if pictures.ndim == 4 else [pictures]
    found = list(pictures) if isinstance(pictures, Sequence) and not isinstance(pictures, str) else [pictures]
    if not found:
        raise UserError("no images given", where="images", fix="give at least one")
    return found


def on_white(image: Image) -> Image:
    """An image in RGB, on white if transparent."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    above = image.convert("RGBA")
    behind = pillow().new("RGBA", above.size, (255, 255, 255, 255))
    return pillow().alpha_composite(behind, above).convert("RGB")


def channels_first(pixels: Pixels) -> Pixels:
    """An array (H, W), (channels, H, W) or (H, W, channels) with channels first; unchanged if ambiguous."""
    if pixels.ndim == 2:
        return pixels[None]
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4):
        return pixels
    if pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4):
        return np.moveaxis(pixels, -1, 0)
    raise UserError(f"a picture has shape {pixels.shape}", where="images", fix="expected (H, W, 3) or (3, H, W)")


def convert_to_rgb(pixels: Pixels) -> Pixels:
    """Grayscale or RGBA channels (1 or 4, H, W) as RGB on white."""
    if len(pixels) == 1:
        return np.repeat(pixels, 3, 0)
    if len(pixels) != 4:
        return pixels
    whole = np.issubdtype(pixels.dtype, np.integer)
    white = 255 if whole else 1.0
    share = pixels[3:] / white
    mixed = share * pixels[:3] + (1 - share) * white
    return (np.round(mixed) if whole else mixed).astype(pixels.dtype)


def target(pixels: Pixels, size: int | tuple[int, int]) -> tuple[int, int]:
    """Rows and columns to resize to."""
    if not isinstance(size, int):
        return size
    rows, columns = pixels.shape[1:]
    longer = int(size * max(rows, columns) / min(rows, columns))
    return (longer, size) if columns <= rows else (size, longer)


def resize_pixels(pixels: Pixels, size: tuple[int, int], resample: int) -> Pixels:
    """Resize (channels, H, W); pillow needs uint8, so floats are converted to 0 to 255 and back."""
    shares = False
    if pixels.dtype != np.uint8:
        low, high = pixels.min(), pixels.max()
        shares = not np.allclose(pixels, pixels.astype(int))
        if low < 0 or high > (1 if shares else 255):
            raise UserError(f"pixels go from {low:g} to {high:g}", where="images",
                            fix="give whole numbers from 0 to 255, or shares from 0 to 1")  # fmt: skip
        pixels = (pixels.astype(np.float64) * 255).astype(np.float32) if shares else pixels
        pixels = pixels.astype(np.uint8)
    last = np.moveaxis(pixels, 0, -1)
    image = pillow().fromarray(np.ascontiguousarray(last[..., 0] if last.shape[-1] == 1 else last))
    made = np.array(image.resize((size[1], size[0]), resample=resample))
    made = made[None] if made.ndim == 2 else np.moveaxis(made, -1, 0)
    return (made.astype(np.float64) * (1 / 255)).astype(np.float32) if shares else made


def crop_middle(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """The centre crop of an image; a small image is padded with zeros."""
    for axis, want in enumerate(size, 1):
        have = pixels.shape[axis]
        if have < want:
            before = -(-(want - have) // 2)  # the odd row goes before, as in transformers
            pad = [(0, 0)] * 3
            pad[axis] = (before, want - have - before)
            pixels = np.pad(pixels, pad)
        else:
            start = (have - want) // 2
            pixels = pixels.take(range(start, start + want), axis)
    return pixels


def sides(size: tuple[int, int] | None) -> dict[str, int] | None:
    return None if size is None else {"height": size[0], "width": size[1]}

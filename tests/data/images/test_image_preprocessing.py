"""Pixels against transformers' PIL image processors, on every kind of picture a folder may hold."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BitImageProcessorPil, CLIPImageProcessorPil, DeiTImageProcessorPil, ViTImageProcessorPil

from anyformer import UserError
from anyformer.data.images.preprocessing import ImageSteps

CLASSES = (ViTImageProcessorPil, DeiTImageProcessorPil, CLIPImageProcessorPil, BitImageProcessorPil)
KINDS = {kind.__name__: kind for kind in CLASSES}


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def pictures() -> dict[str, Image.Image]:
    colour = Image.fromarray(noise(41, 57, 3))
    palette = colour.quantize(17)
    see_through = palette.copy()
    see_through.info["transparency"] = 3
    return {
        "colour": colour,
        "tall": Image.fromarray(noise(300, 31, 3)),
        "wide": Image.fromarray(noise(20, 411, 3)),
        "gray": Image.fromarray(noise(33, 20)),
        "gray with alpha": Image.fromarray(noise(33, 20, 2)),
        "alpha": Image.fromarray(noise(24, 50, 4)),
        "palette": palette,
        "palette, see-through": see_through,
        "ink": colour.convert("CMYK"),
        "two colours": colour.convert("1"),
        "16 bits": Image.fromarray(noise(30, 30).astype(np.uint16) * 257),
        "32 bits": Image.fromarray(noise(30, 30).astype(np.int32)),
        "lab": colour.convert("YCbCr"),
        "one pixel": Image.fromarray(noise(1, 1, 3)),
        "one row": Image.fromarray(noise(1, 40, 3)),
        "already the size": Image.fromarray(noise(24, 24, 3)),
    }


PICTURES = pictures()
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("ViTImageProcessorPil", {"size": {"height": 24, "width": 24}, "do_convert_rgb": True}),
    ("ViTImageProcessorPil", {"size": {"height": 30, "width": 17}, "do_convert_rgb": True, "resample": 3}),
    ("ViTImageProcessorPil", {"do_resize": False, "do_convert_rgb": True, "image_mean": [0.1, 0.2, 0.3]}),
    ("ViTImageProcessorPil", {"size": 24, "do_convert_rgb": True, "do_normalize": False, "rescale_factor": 1 / 127.5}),
    ("ViTImageProcessorPil", {"size": [24, 31], "do_convert_rgb": True, "do_rescale": False, "resample": 0}),
    ("DeiTImageProcessorPil", {"size": [31, 27], "crop_size": {"height": 24, "width": 22}, "do_convert_rgb": True}),
    ("DeiTImageProcessorPil", {"do_resize": False, "crop_size": {"height": 35, "width": 28}, "do_convert_rgb": True}),
    ("DeiTImageProcessorPil", {"size": 20, "crop_size": 27, "do_convert_rgb": True, "resample": 1}),
    ("CLIPImageProcessorPil", {"size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}),
    ("CLIPImageProcessorPil", {"size": 25, "crop_size": 22, "resample": 5}),
    ("CLIPImageProcessorPil", {"size": {"shortest_edge": 13}, "do_center_crop": False}),
    ("BitImageProcessorPil", {"size": {"shortest_edge": 28}, "crop_size": {"height": 24, "width": 24}, "resample": 4}),
]  # fmt: skip


def written(kind: str, options: dict[str, Any], folder: Path) -> tuple[Any, Path]:
    theirs = KINDS[kind](**options)
    theirs.save_pretrained(folder)
    return theirs, folder / "preprocessor_config.json"


def gap(ours: torch.Tensor, theirs: Any) -> float:
    wanted = torch.from_numpy(np.stack(theirs["pixel_values"])).float()
    assert ours.shape == wanted.shape
    assert ours.dtype == torch.float32
    return (ours - wanted).abs().max().item()


@pytest.mark.parametrize("kind, options", SETTINGS, ids=lambda value: str(value)[:60])
def test_pixels_equal_theirs_on_every_picture(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    theirs, path = written(kind, options, tmp_path)
    ours = ImageSteps.read(path)
    for name, picture in PICTURES.items():
        assert gap(ours(picture), theirs(picture)) <= 1e-5, name


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_equal_theirs(kind: str, tmp_path: Path) -> None:
    """A file that says nothing but its class, and the file that says everything."""
    theirs, path = written(kind, {}, tmp_path)
    named = {"image_processor_type": kind.removesuffix("Pil")}
    assert ImageSteps.from_dict(named) == ImageSteps.read(path)
    assert gap(ImageSteps.from_dict(named)([PICTURES["colour"]]), theirs([PICTURES["colour"]])) <= 1e-5


@pytest.mark.parametrize("name", ["gray", "alpha", "palette", "ink", "16 bits"])
def test_what_vit_there_refuses_is_made_rgb(name: str) -> None:
    theirs, ours = ViTImageProcessorPil(size={"height": 24, "width": 24}), ImageSteps(size=(24, 24))
    with pytest.raises(Exception, match="elements|range|channel"):
        theirs(PICTURES[name])
    assert gap(ours(PICTURES[name]), theirs(PICTURES[name].convert("RGB"))) <= 1e-5


ARRAYS = {
    "rows first": noise(30, 41, 3),
    "channels first": noise(3, 30, 41),
    "gray channel": noise(30, 41, 1),
    "alpha": noise(30, 41, 4),
    "shares": noise(30, 41, 3) / 255,
    "shares with alpha": noise(30, 41, 4) / 255,
    "floats": noise(30, 41, 3).astype(np.float32),
    "long": noise(30, 41, 3).astype(np.int64),
    "ambiguous": noise(3, 9, 3),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("kind, options", [SETTINGS[0], SETTINGS[2], SETTINGS[8]], ids=["vit", "vit unresized", "clip"])
def test_arrays_and_tensors_equal_theirs(name: str, kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    theirs, path = written(kind, options, tmp_path)
    ours = ImageSteps.read(path)
    assert gap(ours(ARRAYS[name]), theirs(ARRAYS[name])) <= 1e-5
    assert gap(ours(torch.from_numpy(ARRAYS[name])), theirs(ARRAYS[name])) <= 1e-5


def test_a_batch_in_one_array_and_a_mixed_list(tmp_path: Path) -> None:
    theirs, path = written(*SETTINGS[8], tmp_path)
    ours = ImageSteps.read(path)
    batch = noise(4, 30, 41, 3)
    assert gap(ours(batch), theirs(batch)) <= 1e-5
    mixed = [PICTURES["tall"], PICTURES["one pixel"], PICTURES["alpha"]]
    assert gap(ours(mixed), theirs(mixed)) <= 1e-5


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_a_file_is_turned_as_its_camera_noted(turn: int, ending: str, tmp_path: Path) -> None:
    theirs, path = written(*SETTINGS[8], tmp_path)
    exif = Image.Exif()
    exif[0x0112] = turn
    picture = tmp_path / f"turned.{ending}"
    PICTURES["wide"].save(picture, exif=exif)
    ours = ImageSteps.read(path)
    assert gap(ours(picture), theirs(str(picture))) <= 1e-5
    with Image.open(picture) as straight:  # an opened picture is taken as it lies, there as here
        assert gap(ours(straight), theirs(straight)) <= 1e-5


@pytest.mark.parametrize("name", PICTURES)
def test_files_of_every_kind_equal_theirs(name: str, tmp_path: Path) -> None:
    theirs, path = written(*SETTINGS[8], tmp_path)
    picture = tmp_path / "picture.tiff"
    PICTURES[name].save(picture)
    assert gap(ImageSteps.read(path)([picture]), theirs([str(picture)])) <= 1e-5


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize("kind, options", SETTINGS, ids=lambda value: str(value)[:60])
def test_the_file_written_back_means_the_same_there(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    theirs, path = written(kind, options, tmp_path)
    ours = ImageSteps.read(path)
    (tmp_path / "back").mkdir()
    assert ImageSteps.read(ours.save(tmp_path / "back")) == ours
    again = KINDS[kind].from_pretrained(tmp_path / "back")
    before, after = theirs.to_dict(), again.to_dict()
    assert {name: value for name, value in after.items() if value is not None} == {
        name: value for name, value in before.items() if value is not None
    }


def test_older_files_are_understood() -> None:
    older = ImageSteps.from_dict(
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": 24, "crop_size": 20, "resample": 3}
    )
    assert (older.size, older.crop, older.kind) == (24, (20, 20), "CLIPImageProcessor")
    inside = {"image_processor": {"image_processor_type": "ViTImageProcessorFast"}}
    assert ImageSteps.from_dict(inside).size == (224, 224)
    assert ImageSteps.from_dict({"size": 30}, kind="DeiTImageProcessor").size == (30, 30)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"do_flip": True}, "option 'do_flip' is not known"),
    ({"do_rezise": True}, "did you mean 'do_resize'"),
    ({"do_pad": True}, "do_pad = True is not implemented"),
    ({"data_format": "channels_last"}, "data_format"),
    ({"size": {"longest_edge": 30}}, "size = {'longest_edge': 30} is not implemented"),
    ({"size": {"height": 0, "width": 3}}, "is not a size"),
    ({"size": "large"}, "is not a size"),
    ({"size": {"height": 10**9, "width": 10**9}}, "is not a size"),
    ({"crop_size": {"shortest_edge": 30}, "do_center_crop": True}, "has no height and width"),
    ({"resample": 9}, "resample = 9 is not a filter"),
    ({"resample": "bicubic"}, "is not a filter"),
    ({"do_resize": "yes"}, "is not true or false"),
    ({"image_mean": ["a"]}, "are not numbers"),
    ({"image_std": [1.0, 0.0, 1.0]}, "does not fit"),
    ({"image_std": [1.0]}, "does not fit"),
    ({"rescale_factor": True}, "is not a number"),
    ({"image_processor_type": "SamImageProcessor"}, "'SamImageProcessor' is not known"),
]  # fmt: skip


@pytest.mark.parametrize("changes, said", REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        ImageSteps.from_dict({"image_processor_type": "ViTImageProcessor"} | changes)
    assert said in str(error.value)
    assert "preprocessor_config.json" in str(error.value)


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_a_broken_file_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "preprocessor_config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match="not"):
        ImageSteps.read(path)


PICTURES_REFUSED: list[tuple[Any, str]] = [
    (np.full((9, 9, 3), 300), "pixels go from 300 to 300"),
    (np.full((9, 9, 3), -0.5), "pixels go from"),
    (np.zeros((9, 9, 7), np.uint8), "shape (9, 9, 7)"),
    (3.5, "float"),
    ([], "no images given"),
    ("nowhere.png", "no such image"),
]


@pytest.mark.parametrize("picture, said", PICTURES_REFUSED, ids=[said for _, said in PICTURES_REFUSED])
def test_what_is_no_picture_is_refused(picture: Any, said: str) -> None:
    with pytest.raises(UserError) as error:
        ImageSteps()(picture)
    assert said in str(error.value)


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_text("hello")
    with pytest.raises(UserError, match="not a picture"):
        ImageSteps()(tmp_path / "x.png")


def test_pictures_of_different_sizes_are_refused() -> None:
    with pytest.raises(UserError, match=r"sizes \(13, 13\) and \(13, 130\)"):
        ImageSteps(size=13)([noise(30, 30, 3), noise(30, 300, 3)])


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UserError, match=r"pip install 'anyformer\[train\]'"):
        ImageSteps()(noise(9, 9, 3))


def test_gray_models_get_one_channel() -> None:
    steps = ImageSteps(size=(8, 8), mean=(0.5,), std=(0.5,))
    theirs = ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.5], image_std=[0.5])
    assert gap(steps(PICTURES["gray"]), theirs(PICTURES["gray"])) <= 1e-5
    assert steps(PICTURES["colour"]).shape == (1, 1, 8, 8)


def test_another_size_keeps_the_share_that_is_cropped() -> None:
    assert ImageSteps().resized(448).size == (448, 448)
    clip = ImageSteps.from_dict({"image_processor_type": "CLIPImageProcessor"}).resized((448, 336))
    assert (clip.size, clip.crop) == (448, (448, 336))
    deit = ImageSteps.from_dict({"image_processor_type": "DeiTImageProcessor"}).resized(448)
    assert (deit.size, deit.crop) == ((512, 512), (448, 448))
    assert json.dumps(deit.to_dict())

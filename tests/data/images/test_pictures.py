"""Pictures for training: what is read, what is refused and why, and that training sees what prediction sees."""

from __future__ import annotations

import gzip
import lzma
import os
import resource
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from anyformer.data.datasets.arrays import Arrays
from anyformer.data.files.open_text import show_path
from anyformer.data.images import workers
from anyformer.data.images.decode_all import normalise, picture_arrays, picture_steps, read_pictures
from anyformer.data.images.decoding import ImageShape, Unreadable, eight_bits, open_image, pixels, plain
from anyformer.data.images.preprocessing import ImageSteps
from anyformer.data.settings import ImageSettings
from anyformer.errors import UserError
from tests.data.images.bad_images import (
    ACCEPTED,
    REFUSED,
    SIDE,
    Case,
    bomb,
    colours,
    encoded,
    first,
    grays,
    see_through,
)


def arrays_of(values: Any, folder: Path, **options: Any) -> tuple[int, int, np.ndarray, np.ndarray, list[str]]:
    said: list[str] = []
    settings = options.pop("settings", ImageSettings())
    arrays = Arrays.new(folder / "arrays")
    shape, ok = picture_arrays(values, folder, settings, arrays, "pixels", log=said.append, **options)
    return shape.sides[0], shape.channels, ok, arrays["pixels"], said


def write(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(Image.fromarray(array), "PNG"))
    return path


# ---------------------------------------------------------------- single files


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
def test_odd_pictures_are_read_as_they_are_meant(tmp_path: Path, case: Case) -> None:
    path = case.make(tmp_path)
    assert case.pixels is not None
    size, channels, ok, stored, _ = arrays_of([path.name], tmp_path, bad="error")
    assert (size, channels, ok.tolist()) == (SIDE, len(case.pixels), [True])
    assert np.array_equal(stored[0], case.pixels)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_bad_pictures_are_named_with_a_reason(tmp_path: Path, case: Case) -> None:
    path = case.make(tmp_path)
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        arrays_of([str(path)], tmp_path, bad="error")
    assert time.monotonic() - started < 5
    line = caught.value.line
    assert len(line) <= 300 and "\n" not in line
    assert path.name[-40:] in line and case.words in line
    # The same beside a good one: left out, named, and the good one read.
    good = write(tmp_path / "good" / "good.png", colours())
    size, _, ok, stored, said = arrays_of([str(path), str(good)], tmp_path)
    assert (size, ok.tolist()) == (SIDE, [False, True])
    assert not stored[0].any() and np.array_equal(stored[1], first(colours()))
    assert any("skipped 1 images" in line and path.name[-40:] in line for line in said)


@pytest.mark.quick
def test_there_are_enough_bad_cases() -> None:
    assert len(REFUSED) >= 40
    names = [case.name for case in [*ACCEPTED, *REFUSED]]
    assert len(names) == len(set(names)) >= 70


def test_a_whole_file_of_each_cut_kind_is_accepted(tmp_path: Path) -> None:
    """The control of the cuts: uncut they are fine."""
    from tests.data.images.bad_images import coded

    for format in ("PNG", "JPEG", "GIF", "WEBP", "TIFF"):
        (tmp_path / format).write_bytes(coded(format))
        assert arrays_of([format], tmp_path, bad="error")[0] == 64


def test_a_bomb_takes_little_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (tmp_path / "bomb.png").write_bytes(bomb(60_000, 60_000))
    assert (tmp_path / "bomb.png").stat().st_size < 20_000
    with pytest.raises(UserError, match="60,000 x 60,000 pixels are too many|too many pixels"):
        arrays_of(["bomb.png"], tmp_path, bad="error")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # in KiB


def test_one_pixel_is_a_picture(tmp_path: Path) -> None:
    write(tmp_path / "one.png", np.full((1, 1, 3), 9, np.uint8))
    size, channels, ok, stored, _ = arrays_of(["one.png"], tmp_path)
    assert (size, channels, ok.tolist()) == (32, 3, [True])
    assert (stored == 9).all()


@pytest.mark.parametrize("bad", ["skip", "error"])
def test_all_bad_is_an_error_either_way(tmp_path: Path, bad: str) -> None:
    with pytest.raises(UserError, match="and 1 images more") as caught:
        arrays_of(["a.png", "b.png"], tmp_path, bad=bad)
    assert len(caught.value.details) == 2


def test_missing_pictures_are_counted_not_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.png", colours())
    _, _, ok, stored, said = arrays_of(["a.png", None, ""], tmp_path, bad="error")
    assert ok.tolist() == [True, False, False]
    assert not stored[1:].any() and "2 rows have no image" in said
    with pytest.raises(UserError, match="no images"):
        arrays_of([None, ""], tmp_path)


def test_bytes_arrays_and_images_are_pictures_too(tmp_path: Path) -> None:
    image = Image.fromarray(colours())
    values = [encoded(image, "PNG"), colours(), image, str(write(tmp_path / "a.png", colours()))]
    _, _, ok, stored, _ = arrays_of(values, tmp_path)
    assert ok.all()
    for row in stored:
        assert np.array_equal(row, first(colours()))
    _, _, ok, _, said = arrays_of([*values, b"rubbish", 3.5], tmp_path)
    assert ok.tolist() == [True] * 4 + [False] * 2
    assert any("image 5 (not a picture)" in line and "float instead of a path" in line for line in said)


def test_paths_are_taken_from_the_folder_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t" / "a.png", colours(1))
    write(tmp_path / "a.png", colours(2))
    write(tmp_path / "b.png", colours(3))
    monkeypatch.chdir(tmp_path)
    _, _, _, stored, _ = arrays_of(["a.png", "b.png"], tmp_path / "t")
    assert np.array_equal(stored[0], first(colours(1)))  # beside the table first
    assert np.array_equal(stored[1], first(colours(3)))  # else from where the command runs


@pytest.mark.parametrize("dtype, high", [(np.uint16, 65535), (np.int32, 255), (np.int32, 65535), (np.float32, 1.0)])
def test_deep_gray_keeps_its_range(dtype: Any, high: float) -> None:
    values = np.linspace(0, high, 256).astype(dtype)
    assert np.array_equal(eight_bits(values), np.arange(256, dtype=np.uint8))


# ---------------------------------------------------------------- sizes, and equality with prediction


def test_the_size_suits_the_pictures(tmp_path: Path) -> None:
    def size(*sides: tuple[int, int], **options: Any) -> int:
        values = [np.zeros((high, wide, 3), np.uint8) for wide, high in sides]
        return arrays_of(values, tmp_path, settings=ImageSettings(**options))[0]

    assert size((28, 28), (28, 28)) == 28
    assert size((64, 64)) == 64
    assert size((65, 65)) == 64
    assert size((40, 30), (30, 40)) == 32
    assert size((100, 90), (120, 100)) == 96
    assert size((640, 480), (300, 200)) == 224
    assert size((640, 480), size=48) == 48


def test_channels_are_those_of_the_pictures_unless_asked(tmp_path: Path) -> None:
    assert arrays_of([grays(), grays(1)], tmp_path)[1] == 1
    assert arrays_of([grays(), colours()], tmp_path)[1] == 3
    assert arrays_of([colours()], tmp_path, settings=ImageSettings(channels=1))[1] == 1
    assert arrays_of([grays()], tmp_path, settings=ImageSettings(channels=3))[1] == 3


SHAPES = [(37, 53), (53, 37), (20, 20), (10, 90), (224, 224), (300, 500)]


@pytest.mark.parametrize("channels", [1, 3])
def test_training_pixels_equal_those_of_the_saved_steps(tmp_path: Path, channels: int) -> None:
    random = np.random.default_rng(0)
    paths = [
        write(tmp_path / f"{i}.png", random.integers(0, 256, (*side, 3), dtype=np.uint8))
        for i, side in enumerate(SHAPES)
    ]
    jpeg = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(colours(1, 50)).save(jpeg, exif=exif)
    ink = tmp_path / "ink.tif"
    Image.fromarray(colours(2, 41)).convert("CMYK").save(ink)
    values = [str(path) for path in [*paths, jpeg, ink]]
    size, _, ok, stored, _ = arrays_of(values, tmp_path, settings=ImageSettings(size=24, channels=channels))
    assert ok.all() and size == 24
    picture_steps(24, channels).save(tmp_path)
    steps = ImageSteps.read(tmp_path / "preprocessor_config.json")
    made = normalise(stored, steps)
    for value, row in zip(values, made, strict=True):
        assert torch.equal(steps(value)[0], torch.from_numpy(row)), value
    wrong = normalise(stored, picture_steps(25, channels)) + 1e-6
    assert not torch.equal(steps(values[0])[0], torch.from_numpy(wrong[0]))  # the control


@pytest.mark.parametrize("side", [(28, 56), (56, 28), (8, 64)])
def test_small_pictures_of_one_shape_are_kept_whole(tmp_path: Path, side: tuple[int, int]) -> None:
    """Two digits side by side are not cut down to the middle of both."""
    random = np.random.default_rng(3)
    drawn = [random.integers(1, 256, side, dtype=np.uint8) for _ in range(4)]
    paths = [str(write(tmp_path / f"{i}.png", one)) for i, one in enumerate(drawn)]
    size, channels, ok, stored, said = arrays_of(paths, tmp_path)
    assert ok.all() and (size, channels) == (max(side), 1) and stored.shape[2:] == (size, size)
    for one, row in zip(drawn, stored, strict=True):
        assert np.array_equal(row[0][row[0].any(1)][:, row[0].any(0)], one)  # every pixel, and zeros around
    assert f"padded to {size} x {size}" in said[0]
    # A model trained on them does the same to a new picture, and to a larger one of the same shape.
    steps = picture_steps(size, channels, side)
    steps.save(tmp_path)
    read = ImageSteps.read(tmp_path / "preprocessor_config.json")
    assert torch.equal(read(paths[0])[0], torch.from_numpy(normalise(stored, read)[0]))
    grown = write(tmp_path / "grown.png", drawn[0].repeat(2, 0).repeat(2, 1))
    assert read(str(grown)).shape[-2:] == (size, size)
    # The control: pictures of several shapes are cropped to one as before.
    other = write(tmp_path / "other.png", random.integers(1, 256, (30, 40), dtype=np.uint8))
    assert arrays_of([*paths, str(other)], tmp_path)[0] == 32


def test_see_through_pictures_equal_the_saved_steps_once_decoded(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(see_through()[0])
    _, _, _, stored, _ = arrays_of(["a.png"], tmp_path, settings=ImageSettings(size=8))
    steps = picture_steps(8, 3)
    with open_image("a.png", tmp_path) as image:
        assert torch.equal(steps(plain(image, 3))[0], torch.from_numpy(normalise(stored, steps)[0]))
        assert torch.equal(steps(Image.open(tmp_path / "a.png"))[0], torch.from_numpy(normalise(stored, steps)[0]))


@pytest.mark.parametrize(
    "steps",
    [
        ImageSteps(size=(20, 20)),
        ImageSteps(size=26, crop=(22, 22), resample=3, kind="CLIPImageProcessor", convert=True),
        ImageSteps(size=(30, 30), crop=(36, 36), kind="DeiTImageProcessor"),
        ImageSteps(size=None, crop=(33, 33), kind="DeiTImageProcessor"),
        ImageSteps(size=(20, 20), scale=None, mean=None, std=None),
    ],
)
def test_pictures_fit_a_model_that_is_given(tmp_path: Path, steps: ImageSteps) -> None:
    values = [write(tmp_path / f"{i}.png", colours(i, side)) for i, side in enumerate((31, 48))]
    _, _, _, stored, _ = arrays_of([str(value) for value in values], tmp_path, steps=steps)
    assert torch.equal(steps(values), torch.from_numpy(normalise(stored, steps)))


def test_models_of_no_one_size_are_refused(tmp_path: Path) -> None:
    for steps in (ImageSteps(size=24), ImageSteps(size=None)):
        with pytest.raises(UserError, match="size"):
            arrays_of([colours()], tmp_path, steps=steps)


# ---------------------------------------------------------------- workers


def test_workers_give_the_same_as_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FEW", 2)
    monkeypatch.setattr(workers, "TOGETHER", 3)
    values = [str(write(tmp_path / f"{i}.png", colours(i, 10 + i % 7))) for i in range(40)]
    values[7] = str(tmp_path / "none.png")
    alone, shared = (arrays_of(values, tmp_path / str(n), processes=n) for n in (1, 2))
    assert np.array_equal(alone[3], shared[3]) and alone[2].tolist() == shared[2].tolist()
    assert alone[2].sum() == 39


def test_a_picture_that_kills_its_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deadly(value: Any, folder: Path, shape: ImageShape) -> Any:
        if str(value).endswith("4.png"):
            os._exit(1)  # as a decoder does that crashes
        return pixels(value, folder, shape)

    monkeypatch.setattr(workers, "FEW", 2)
    monkeypatch.setattr(workers, "TOGETHER", 2)
    monkeypatch.setattr(workers, "pixels", deadly)
    values = [str(write(tmp_path / f"{i}.png", colours(i))) for i in range(6)]
    _, _, ok, stored, said = arrays_of(values, tmp_path, processes=2)
    assert ok.tolist() == [True, True, True, True, False, True]
    assert any("4.png (crashes the decoder)" in line for line in said)
    assert np.array_equal(stored[5], first(colours(5)))


# ---------------------------------------------------------------- folders of classes


def test_a_folder_of_classes(tmp_path: Path) -> None:
    root = tmp_path / "Fotos ä"
    for i, name in enumerate(("Katze 猫/b.png", "Katze 猫/a.png", "Hund/deep/c.jpg", "Hund/x.PNG")):
        write(root / name, colours(i))
    (root / "Hund" / "Thumbs.db").write_bytes(b"x")
    (root / "Hund" / ".hidden.png").write_bytes(b"x")
    (root / ".git").mkdir()
    (root / "leer").mkdir()
    write(root / "loose.png", colours())
    frame = read_pictures([root])
    rows = [(Path(row["image"]).name, row["label"]) for row in map(frame.cells, range(len(frame)))]
    assert rows == [("x.PNG", "Hund"), ("c.jpg", "Hund"), ("a.png", "Katze 猫"), ("b.png", "Katze 猫")]
    assert dict(frame.skipped) == {"no image by name (.db)": 1, "outside the class folders": 1}
    assert frame.sources[0].notes == ("class folder leer is empty",)
    assert frame.names == ["image", "label"]
    _, _, ok, stored, _ = arrays_of(frame.column("image"), tmp_path)
    assert ok.all() and np.array_equal(stored[2], first(colours(1)))


@pytest.mark.parametrize("valid", ["valid", "val", "Validation"])
def test_sides_above_the_classes(tmp_path: Path, valid: str) -> None:
    for side in ("train", valid, "test"):
        for label in "ab":
            write(tmp_path / "p" / side / label / f"{side}.png", colours())
    frame = read_pictures([tmp_path / "p"])
    assert sorted(frame.column("split").to_pylist()) == ["test", "test", "train", "train", "valid", "valid"]
    for row in map(frame.cells, range(len(frame))):
        assert row["label"] in "ab"
        assert Path(row["image"]).parts[-3].lower().startswith(row["split"][:3])


def test_a_folder_around_the_classes_is_looked_into(tmp_path: Path) -> None:
    for label in "ab":
        write(tmp_path / "zip" / "photos" / label / "1.png", colours())
    assert sorted(read_pictures([tmp_path / "zip"]).column("label").to_pylist()) == ["a", "b"]


def layouts(folder: Path) -> dict[str, tuple[list[Path], str]]:
    write(folder / "flat" / "a.png", colours())
    write(folder / "named" / "images" / "a.png", colours())
    (folder / "named" / "labels.csv").write_text("file,label\na.png,cat\n")
    write(folder / "other" / "images" / "a.png", colours())
    (folder / "other" / "prices.csv").write_text("shop,price\nb,3\n")
    write(folder / "one" / "cat" / "a.png", colours())
    write(folder / "voc" / "JPEGImages" / "a.png", colours())
    (folder / "voc" / "Annotations").mkdir()
    (folder / "nothing").mkdir()
    (folder / "empties" / "cat").mkdir(parents=True)
    (folder / "empties" / "dog").mkdir()
    (folder / "packed").mkdir()
    (folder / "packed" / "photos.zip").write_bytes(b"PK\x03\x04")
    (folder / "photos.zip").write_bytes(b"PK\x03\x04" + bytes(600))
    write(folder / "a.png", colours())
    return {
        "images without classes": ([folder / "flat"], "1 images but no class folders"),
        "images that a table beside them names": (
            [folder / "named" / "images"],
            f"give the table that names its files: {show_path(folder / 'named' / 'labels.csv')}",
        ),
        "control: a table of something else": ([folder / "other" / "images"], "make one folder a class"),
        "one class": ([folder / "one"], "only one class (cat)"),
        "detection": ([folder / "voc"], "boxes as Pascal VOC writes them"),
        "nothing in it": ([folder / "nothing"], "no images"),
        "empty classes": ([folder / "empties"], "no images"),
        "still packed": ([folder / "packed"], "unpack photos.zip first"),
        "an archive": ([folder / "photos.zip"], "unpack it first"),
        "one picture": ([folder / "a.png"], "neither a folder of images nor an IDX file"),
        "not there": ([folder / "none"], "no such file"),
    }


def test_other_layouts_are_refused_by_name(tmp_path: Path) -> None:
    for paths, words in layouts(tmp_path).values():
        with pytest.raises(UserError) as caught:
            read_pictures(paths)
        assert words in caught.value.line and paths[0].name in caught.value.line
        assert len(caught.value.line) <= 300


# ---------------------------------------------------------------- IDX


def idx(array: np.ndarray, magic: bytes = b"\0\0\x08") -> bytes:
    return magic + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_set(folder: Path, count: int = 20, side: int = 9, pack: Any = bytes, suffix: str = "") -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    made = {}
    for name, rows in (("train", count), ("t10k", count // 2)):
        made[name] = random.integers(0, 256, (rows, side, side), dtype=np.uint8)
        made[f"{name} labels"] = random.integers(0, 3, rows).astype(np.uint8)
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(made[name])))
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(made[f"{name} labels"])))
    return made


@pytest.mark.parametrize("pack, suffix", [(bytes, ""), (gzip.compress, ".gz"), (lzma.compress, ".xz")])
def test_idx_files_are_their_bytes(tmp_path: Path, pack: Any, suffix: str) -> None:
    made = idx_set(tmp_path, pack=pack, suffix=suffix)
    frame = read_pictures([tmp_path])
    assert frame.column("split").to_pylist() == ["test"] * 10 + ["train"] * 20
    size, channels, ok, stored, _ = arrays_of(frame.column("image"), tmp_path)
    assert (size, channels, ok.all()) == (9, 1, True)
    assert np.array_equal(stored[:, 0], np.concatenate([made["t10k"], made["train"]]))
    labels = np.concatenate([made["t10k labels"], made["train labels"]])
    assert frame.column("label").to_pylist() == [str(label) for label in labels]
    assert frame.place(12).endswith("image 3")
    some = frame.take([15, 3])
    assert np.array_equal(arrays_of(some.column("image"), tmp_path)[3][0, 0], made["train"][5])
    resized = arrays_of(some.column("image"), tmp_path, settings=ImageSettings(size=16, channels=3))[3]
    steps = picture_steps(16, 3)
    assert torch.equal(steps(made["train"][5])[0], torch.from_numpy(normalise(resized, steps)[0]))


def test_a_pair_of_idx_files_by_name(tmp_path: Path) -> None:
    idx_set(tmp_path)
    frame = read_pictures([tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"])
    assert frame.names == ["image", "label"] and len(frame) == 20


IMAGES, LABELS = np.zeros((4, 5, 5), np.uint8), np.array([0, 1, 0, 1], np.uint8)
BAD_IDX = {
    "wrong magic": (b"\1" + idx(IMAGES)[1:], idx(LABELS), "neither a folder of images nor an IDX file"),
    "numbers, not bytes": (idx(IMAGES, b"\0\0\x0d"), idx(LABELS), "neither a folder of images nor an IDX file"),
    "short data": (idx(IMAGES)[:-7], idx(LABELS), "speaks of 100 bytes, there are 93"),
    "too much data": (idx(IMAGES) + b"xyz", idx(LABELS), "there are more than 100"),
    "short labels": (idx(IMAGES), idx(LABELS)[:-1], "speaks of 4 bytes, there are 3"),
    "fewer labels": (idx(IMAGES), idx(LABELS[:3]), "4 images but 3 labels"),
    "one class": (idx(IMAGES), idx(LABELS * 0), "only one class (0)"),
    "huge head": (idx(IMAGES).replace(struct.pack(">3I", 4, 5, 5), struct.pack(">3I", 2**31, 2**15, 2**15)),
                  idx(LABELS), "its head speaks of"),
    "only a head": (idx(IMAGES)[:7], idx(LABELS), "neither"),
    "empty": (b"", idx(LABELS), "neither"),
    "no images": (idx(IMAGES[:0]), idx(LABELS[:0]), "no images in it"),
    "two of labels": (idx(LABELS), idx(LABELS), "labels but no images"),
    "two of images": (idx(IMAGES), idx(IMAGES), "no labels for it"),
    "cut gzip": (gzip.compress(idx(IMAGES))[:25], idx(LABELS), "cut short"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_IDX)
def test_bad_idx_files_are_named(tmp_path: Path, name: str) -> None:
    images, labels, words = BAD_IDX[name]
    (tmp_path / "train-images-idx3-ubyte").write_bytes(images)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(labels)
    with pytest.raises(UserError) as caught:
        read_pictures([tmp_path])
    assert words in caught.value.line and len(caught.value.line) <= 300
    assert "train-" in caught.value.line or tmp_path.name in caught.value.line


def test_an_idx_file_that_changes_is_read_again(tmp_path: Path) -> None:
    first_made = idx_set(tmp_path)
    before = arrays_of(read_pictures([tmp_path]).column("image"), tmp_path)[3].copy()
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(255 - first_made["t10k"]))
    os.utime(tmp_path / "t10k-images-idx3-ubyte", ns=(1, 1))
    after = arrays_of(read_pictures([tmp_path]).column("image"), tmp_path)[3]
    assert np.array_equal(after[0], 255 - before[0])


def test_reasons_are_one_line() -> None:
    with pytest.raises(Unreadable) as caught, open_image("x\ny.png", Path("/nowhere")):
        pass
    assert "\n" not in str(caught.value)

"""Odd and malformed pictures, each with what is promised: refused for a reason, or accepted with these pixels."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 12


def colours(seed: int = 0, side: int = SIDE) -> np.ndarray:
    """A picture (H, W, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def grays(seed: int = 0) -> np.ndarray:
    return colours(seed)[..., 0]


def first(pixels: np.ndarray) -> np.ndarray:
    """Channels first."""
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def coded(format: str, side: int = 64) -> bytes:
    """A picture file large enough to be cut in quarters."""
    options: dict[str, Any] = {"lossless": True} if format == "WEBP" else {}
    return encoded(Image.fromarray(colours(3, side)), format, **options)


@dataclass(frozen=True)
class Case:
    """One picture file. `make` writes it and gives its path; `words` is why it is refused, else `pixels` come out."""

    name: str
    make: Callable[[Path], Path]
    words: str = ""
    pixels: np.ndarray | None = None


def holding(name: str, content: bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return make


def bomb(wide: int, high: int) -> bytes:
    """A PNG of few bytes whose head speaks of many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(10_000_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def a_folder(folder: Path) -> Path:
    (folder / "x.png").mkdir()
    return folder / "x.png"


def a_broken_link(folder: Path) -> Path:
    (folder / "lost.png").symlink_to("nowhere.png")
    return folder / "lost.png"


def a_link_to_itself(folder: Path) -> Path:
    (folder / "loop.png").symlink_to("loop.png")
    return folder / "loop.png"


def a_link(folder: Path) -> Path:
    (folder / "real.png").write_bytes(encoded(Image.fromarray(colours()), "PNG"))
    (folder / "link.png").symlink_to("real.png")
    return folder / "link.png"


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.png")
    return folder / "pipe.png"


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(colours()), "PNG", exif=exif)


def see_through() -> tuple[bytes, np.ndarray]:
    """Half of it transparent."""
    pixels = np.dstack([colours(), np.where(np.arange(SIDE) < 6, 255, 0)[None].repeat(SIDE, 0)]).astype(np.uint8)
    white = pixels[..., :3].copy()
    white[:, 6:] = 255
    return encoded(Image.fromarray(pixels), "PNG"), white


def palette() -> tuple[bytes, np.ndarray]:
    image = Image.fromarray(colours()).quantize(16)
    return encoded(image, "PNG"), np.asarray(image.convert("RGB"))


def palette_see_through() -> tuple[bytes, np.ndarray]:
    image = Image.fromarray(colours()).quantize(16)
    hidden = int(np.asarray(image)[0, 0])
    white = np.array(image.convert("RGB"))
    white[np.asarray(image) == hidden] = 255
    return encoded(image, "PNG", transparency=hidden), white


def animated(format: str) -> tuple[bytes, np.ndarray]:
    frames = [Image.fromarray(colours(seed)).quantize(32).convert("RGB") for seed in (1, 2, 3)]
    options: dict[str, Any] = {"lossless": True} if format == "WEBP" else {}
    content = encoded(frames[0], format, save_all=True, append_images=frames[1:], **options)
    return content, np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def ink() -> tuple[bytes, np.ndarray]:
    image = Image.fromarray(colours()).convert("CMYK")
    content = encoded(image, "TIFF")
    return content, np.asarray(image.convert("RGB"))


def ink_jpeg() -> tuple[bytes, np.ndarray]:
    content = encoded(Image.fromarray(colours()).convert("CMYK"), "JPEG", quality=95)
    return content, np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def jpeg() -> tuple[bytes, np.ndarray]:
    content = encoded(Image.fromarray(colours()), "JPEG")
    return content, np.asarray(Image.open(io.BytesIO(content)))


WHOLE = encoded(Image.fromarray(colours()), "PNG")
BROKEN_SUM = WHOLE[:50] + bytes([WHOLE[50] ^ 0xFF]) + WHOLE[51:]


def accepted() -> list[Case]:
    plain = first(colours())
    cases = [
        Case("plain", holding("a.png", WHOLE), pixels=plain),
        Case("wrong suffix, PNG as jpg", holding("a.jpg", WHOLE), pixels=plain),
        Case("wrong suffix, PNG as gif", holding("a.gif", WHOLE), pixels=plain),
        Case("capital suffix", holding("A.PNG", WHOLE), pixels=plain),
        Case("unicode name", holding("Bild ä 猫 🐈.png", WHOLE), pixels=plain),
        Case("blanks and quotes in the name", holding("a 'b' \"c\" #1.png", WHOLE), pixels=plain),
        Case("new line in the name", holding("a\nb.png", WHOLE), pixels=plain),
        Case("BMP", holding("a.bmp", encoded(Image.fromarray(colours()), "BMP")), pixels=plain),
        Case("PPM", holding("a.ppm", encoded(Image.fromarray(colours()), "PPM")), pixels=plain),
        Case("TIFF", holding("a.tif", encoded(Image.fromarray(colours()), "TIFF")), pixels=plain),
        Case("WebP", holding("a.webp", encoded(Image.fromarray(colours()), "WEBP", lossless=True)), pixels=plain),
        Case("trailing rubbish", holding("a.png", WHOLE + b"rubbish" * 50), pixels=plain),
        Case("gray", holding("a.png", encoded(Image.fromarray(grays()), "PNG")), pixels=first(grays())),
        Case("16 bits", holding("a.png", encoded(Image.fromarray(grays().astype(np.uint16) * 257), "PNG")),
             pixels=first(grays())),
        Case("16 bits TIFF", holding("a.tif", encoded(Image.fromarray(grays().astype(np.uint16) * 257), "TIFF")),
             pixels=first(grays())),
        Case("fractions", holding("a.tif", encoded(Image.fromarray((grays() / 255).astype(np.float32)), "TIFF")),
             pixels=first(grays())),
        Case("two colours", holding("a.png", encoded(Image.fromarray(grays() > 127), "PNG")),
             pixels=first((grays() > 127).astype(np.uint8) * 255)),
        Case("a link", a_link, pixels=plain),
    ]  # fmt: skip
    for name, suffix, (content, pixels) in (
        ("JPEG", "jpg", jpeg()), ("alpha", "png", see_through()), ("palette", "png", palette()),
        ("palette, see-through", "png", palette_see_through()), ("ink", "tif", ink()), ("ink JPEG", "jpg", ink_jpeg()),
        ("animated GIF", "gif", animated("GIF")), ("animated WebP", "webp", animated("WEBP")),
        ("animated PNG", "png", animated("PNG")),
    ):  # fmt: skip
        cases.append(Case(name, holding(f"a.{suffix}", content), pixels=first(pixels)))
    back = {2: (slice(None), slice(None, None, -1)), 3: (slice(None, None, -1), slice(None, None, -1))}
    for orientation, (rows, columns) in back.items():
        pixels = first(colours()[rows, columns])
        cases.append(Case(f"turned {orientation}", holding("a.png", turned(orientation)), pixels=pixels))
    cases.append(Case("turned 6", holding("a.png", turned(6)), pixels=first(np.rot90(colours(), -1))))
    cases.append(Case("turned 8", holding("a.png", turned(8)), pixels=first(np.rot90(colours(), 1))))
    return cases


def refused() -> list[Case]:
    cases = [
        Case("no bytes", holding("a.png", b""), "empty file"),
        Case("text", holding("a.png", b"hello, this is no picture\n" * 20), "not a picture"),
        Case("HTML", holding("a.jpg", b"<!DOCTYPE html><html>404 Not Found</html>"), "not a picture"),
        Case("LFS pointer", holding("a.jpg", b"version https://git-lfs.github.com/spec/v1\noid x\n"), "not a picture"),
        Case("vector", holding("a.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "not a picture"),
        Case("PostScript", holding("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"),
             "not a picture"),
        Case("PDF", holding("a.png", b"%PDF-1.4\n%rubbish\n"), "not a picture"),
        Case("only a signature", holding("a.png", b"\x89PNG\r\n\x1a\n"), "not a picture"),
        Case("zeros", holding("a.png", bytes(5000)), "not a picture"),
        Case("noise", holding("a.jpg", np.random.default_rng(0).bytes(5000)), "not a picture"),
        Case("only a JPEG's first bytes", holding("a.jpg", b"\xff\xd8\xff\xe0\x00\x10JFIF"), ""),
        Case("wrong checksum", holding("a.png", BROKEN_SUM), ""),
        Case("bomb", holding("a.png", bomb(60_000, 60_000)), "too many"),
        Case("smaller bomb", holding("a.png", bomb(9_000, 9_000)), "too many"),
        Case("largest head", holding("a.png", bomb(2**31 - 1, 2**31 - 1)), "too many"),
        Case("out of proportion", holding("a.png", bomb(30_000, 1)), "out of proportion"),
        Case("no height", holding("a.png", bomb(8, 0)), ""),
        Case("head of more than there is", holding("a.png", bomb(4_000, 4_000)), "truncated"),
        Case("a folder", a_folder, "a folder"),
        Case("a broken link", a_broken_link, "a link to nothing"),
        Case("a link to itself", a_link_to_itself, ""),
        Case("a pipe", a_pipe, "not a plain file"),
        Case("nothing there", lambda folder: folder / "none.png", "no such file"),
        Case("nothing there, long name", lambda folder: folder / ("x" * 250 + ".png"), "no such file"),
        Case("name too long", lambda folder: folder / ("x" * 3000 + ".png"), ""),
        Case("zero in the name", lambda folder: folder / "a\0b.png", "not a path"),
    ]  # fmt: skip
    for format, suffix in (("PNG", "png"), ("JPEG", "jpg"), ("GIF", "gif"), ("WEBP", "webp"), ("TIFF", "tif")):
        content = coded(format)
        for quarter in (1, 2, 3):
            cut = content[: len(content) * quarter // 4]
            cases.append(Case(f"{format} cut at {quarter}/4", holding(f"cut.{suffix}", cut)))
    return cases


ACCEPTED, REFUSED = accepted(), refused()

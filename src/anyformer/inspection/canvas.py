"""A drawing as a list of marks, rendered as SVG or PNG from the same list.

SVG needs only the standard library. PNG needs Pillow, for text; neither needs a display.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import struct
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import Any, Literal

import numpy as np

from anyformer.extras import require
from anyformer.plain_text import is_active

Anchor = Literal["start", "middle", "end"]
FAMILY = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
INK, SOFT, HAIR = "#1a1c20", "#5c6370", "#c9ced6"
BASELINE = 0.35  # offset of the baseline below the middle of a line, as a fraction of the font size
# Fonts with more glyphs than Pillow's own, by their names on Linux, macOS and Windows.
OTHER_FONTS = (
    "DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial Unicode.ttf", "arial.ttf",
    "NotoSansCJK-Regular.ttc", "DroidSansFallbackFull.ttf", "wqy-microhei.ttc", "PingFang.ttc", "msyh.ttc",
)  # fmt: skip
FINER = 4  # supersampling factor of curves
NO_CHARACTER = "\uffff"  # in no font: drawn as the missing-glyph sign


@dataclass(frozen=True)
class Rectangle:
    """A rectangle, filled or outlined."""

    x: float
    y: float
    width: float
    height: float
    fill: str | None = None
    stroke: str | None = None
    line: float = 1.0


@dataclass(frozen=True)
class Stroke:
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    stroke: str = HAIR
    line: float = 1.0


@dataclass(frozen=True)
class Label:
    """One line of text, vertically centred at (x, y); `up` rotates it to read upwards."""

    x: float
    y: float
    text: str
    size: float = 11.0
    anchor: Anchor = "start"
    fill: str = INK
    up: bool = False


@dataclass(frozen=True)
class Pixels:
    """An RGB image (rows, columns, 3) of bytes, scaled to a rectangle; `smooth` interpolates, for photographs."""

    x: float
    y: float
    width: float
    height: float
    rgb: np.ndarray
    smooth: bool = False


@dataclass(frozen=True)
class Curve:
    """A line through points (x, y); `dash` is an SVG dash pattern."""

    points: tuple[tuple[float, float], ...]
    stroke: str
    line: float = 1.75
    dash: str = ""


Mark = Rectangle | Stroke | Label | Pixels | Curve


@dataclass
class Drawing:
    """Marks in drawing order, on white."""

    width: float
    height: float
    title: str = ""
    marks: list[Mark] = field(default_factory=list)

    def svg(self) -> str:
        """The drawing as a whole SVG document."""
        body = "".join(svg_mark(mark) for mark in self.marks)
        size = f'width="{short(self.width)}" height="{short(self.height)}"'
        return (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {short(self.width)} {short(self.height)}" role="img" font-family="{FAMILY}">'
            f"<title>{escape(shown(self.title))}</title>"
            f'<rect width="100%" height="100%" fill="#ffffff"/>{body}</svg>\n'
        )

    def png(self, *, zoom: float = 2.0) -> bytes:
        """The drawing as a PNG file with `zoom` pixels per unit."""
        require("PIL", "a PNG needs", where="png", or_else="write an SVG")
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (round(self.width * zoom), round(self.height * zoom)), "#ffffff")
        draw = ImageDraw.Draw(image)
        for mark in self.marks:
            paint(image, draw, mark, zoom)
        file = io.BytesIO()
        image.save(file, "PNG", dpi=(96 * zoom, 96 * zoom))
        return file.getvalue()


def short(number: float) -> str:
    """At most two decimals.

    >>> short(3.0), short(1.256)
    ('3', '1.26')
    """
    return f"{number:.2f}".rstrip("0").rstrip(".")


def shown(text: str) -> str:
    r"""Text safe for XML and display: control characters and characters not allowed in XML are escaped.

    >>> shown("a\x00b\ufffe")
    'a\\x00b\\ufffe'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode("ascii") if is_active(c) or ord(c) & 0xFFFE == 0xFFFE else c for c in text
    )


def text_width(text: str, size: float) -> float:
    """Approximate width of a line of Helvetica, rather too large than too small, so that nothing overlaps."""
    wide = 0.0
    for c in text:
        if unicodedata.east_asian_width(c) in "WF":
            wide += 1.02
        elif unicodedata.combining(c):
            continue
        elif c in " iljtfIr.,:;'|!()[]/·":
            wide += 0.34
        elif c in "mwMW@%…—":
            wide += 0.92
        else:
            wide += 0.7 if c.isupper() else 0.58
    return wide * size


# ---------------------------------------------------------------- SVG


def svg_mark(mark: Mark) -> str:
    """A mark as an SVG element."""
    match mark:
        case Rectangle():
            stroke = f' stroke="{mark.stroke}" stroke-width="{short(mark.line)}"' if mark.stroke else ""
            crisp = "" if mark.stroke else ' shape-rendering="crispEdges"'
            return (
                f'<rect x="{short(mark.x)}" y="{short(mark.y)}" width="{short(mark.width)}" '
                f'height="{short(mark.height)}" fill="{mark.fill or "none"}"{stroke}{crisp}/>'
            )
        case Stroke():
            return (
                f'<line x1="{short(mark.x1)}" y1="{short(mark.y1)}" x2="{short(mark.x2)}" y2="{short(mark.y2)}" '
                f'stroke="{mark.stroke}" stroke-width="{short(mark.line)}"/>'
            )
        case Label():
            turn = f' transform="rotate(-90 {short(mark.x)} {short(mark.y)})"' if mark.up else ""
            return (
                f'<text x="{short(mark.x)}" y="{short(mark.y)}" dy="{BASELINE}em" font-size="{short(mark.size)}" '
                f'text-anchor="{mark.anchor}" fill="{mark.fill}" xml:space="preserve"{turn}>'
                f"{escape(shown(mark.text))}</text>"
            )
        case Curve():
            through = " ".join(f"{short(x)},{short(y)}" for x, y in mark.points)
            dash = f' stroke-dasharray="{mark.dash}"' if mark.dash else ""
            return (
                f'<polyline points="{through}" fill="none" stroke="{mark.stroke}" stroke-width="{short(mark.line)}" '
                f'stroke-linejoin="round"{dash}/>'
            )
        case Pixels():
            data = base64.b64encode(png_bytes(mark.rgb)).decode("ascii")
            style = "" if mark.smooth else ' style="image-rendering:pixelated"'
            return (
                f'<image x="{short(mark.x)}" y="{short(mark.y)}" width="{short(mark.width)}" '
                f'height="{short(mark.height)}" preserveAspectRatio="none"{style} href="data:image/png;base64,{data}"/>'
            )


def png_bytes(rgb: np.ndarray) -> bytes:
    """Pixels (rows, columns, 3) as a PNG file, without Pillow."""
    rows, columns, _ = rgb.shape
    lines = np.zeros((rows, 1 + columns * 3), np.uint8)  # each line starts with its filter type, 0: none
    lines[:, 1:] = rgb.astype(np.uint8).reshape(rows, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)  # 8 bits per channel, RGB
    packed = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


# ---------------------------------------------------------------- PNG


def paint(image: Any, draw: Any, mark: Mark, zoom: float) -> None:
    """Draw a mark on a Pillow image."""
    from PIL import Image

    match mark:
        case Rectangle():
            # Edges are rounded, not sizes, so that neighbouring cells have no gap between them.
            left, top = round(mark.x * zoom), round(mark.y * zoom)
            right, bottom = round((mark.x + mark.width) * zoom), round((mark.y + mark.height) * zoom)
            if mark.fill and right > left and bottom > top:
                draw.rectangle((left, top, right - 1, bottom - 1), fill=mark.fill)
            if mark.stroke:
                draw.rectangle((left, top, right, bottom), outline=mark.stroke, width=max(1, round(mark.line * zoom)))
        case Stroke():
            ends = tuple(round(v * zoom) for v in (mark.x1, mark.y1, mark.x2, mark.y2))
            draw.line(ends, fill=mark.stroke, width=max(1, round(mark.line * zoom)))
        case Label():
            paint_words(image, draw, mark, zoom)
        case Curve():
            paint_curve(image, mark, zoom)
        case Pixels():
            size = max(1, round(mark.width * zoom)), max(1, round(mark.height * zoom))
            way = Image.Resampling.BICUBIC if mark.smooth else Image.Resampling.NEAREST
            picture = Image.fromarray(mark.rgb.astype(np.uint8)).resize(size, way)
            image.paste(picture, (round(mark.x * zoom), round(mark.y * zoom)))


def paint_curve(image: Any, mark: Curve, zoom: float) -> None:
    """Draw a curve with antialiasing, by supersampling: Pillow draws lines in whole pixels."""
    from PIL import Image, ImageDraw

    room = mark.line + 1
    left, top = (min(point[i] for point in mark.points) - room for i in (0, 1))
    right, bottom = (max(point[i] for point in mark.points) + room for i in (0, 1))
    corner = int(left * zoom), int(top * zoom)
    size = int(right * zoom) - corner[0] + 1, int(bottom * zoom) - corner[1] + 1
    cover = Image.new("L", (size[0] * FINER, size[1] * FINER), 0)
    pen, width = ImageDraw.Draw(cover), max(1, round(mark.line * zoom * FINER))
    for piece in dashed(mark.points, [float(n) for n in mark.dash.split()]):
        ends = [((x * zoom - corner[0]) * FINER, (y * zoom - corner[1]) * FINER) for x, y in piece]
        pen.line(ends, fill=255, width=width, joint="curve")
    cover = cover.resize(size, Image.Resampling.BOX)
    image.paste(Image.new("RGB", size, mark.stroke), corner, cover)


def dashed(points: Sequence[tuple[float, float]], lengths: Sequence[float]) -> list[list[tuple[float, float]]]:
    """The drawn pieces of a dashed line; the whole line if no dash lengths are given.

    >>> dashed([(0, 0), (5, 0)], [2, 1])
    [[(0, 0), (2.0, 0.0)], [(3.0, 0.0), (5, 0)]]
    """
    if not lengths:
        return [list(points)]
    pieces, number, left = [[points[0]]], 0, lengths[0]
    for (ax, ay), (bx, by) in itertools.pairwise(points):
        whole, gone = math.hypot(bx - ax, by - ay), 0.0
        while whole - gone > left:
            gone += left
            at = (ax + (bx - ax) * gone / whole, ay + (by - ay) * gone / whole)
            if number % 2 == 0:
                pieces[-1].append(at)
            else:
                pieces.append([at])
            number += 1
            left = lengths[number % len(lengths)]
        left -= whole - gone
        if number % 2 == 0 and whole > gone:
            pieces[-1].append((bx, by))
    return [piece for piece in pieces if len(piece) > 1]


def paint_words(image: Any, draw: Any, mark: Label, zoom: float) -> None:
    from PIL import Image, ImageDraw

    size = round(mark.size * zoom)
    text, font = readable(shown(mark.text), size)
    length = font.getlength(text)
    before = {"start": 0.0, "middle": length / 2, "end": length}[mark.anchor]
    x, y = mark.x * zoom, mark.y * zoom
    if not mark.up:
        draw.text((x - before, y + BASELINE * size), text, font=font, fill=mark.fill, anchor="ls")
        return
    room = 2 * size
    cover = Image.new("L", (int(length) + room, 2 * room), 0)  # as wide as the text, with a margin for overhang
    ImageDraw.Draw(cover).text((size, room + BASELINE * size), text, font=font, fill=255, anchor="ls")
    turned = cover.transpose(Image.Transpose.ROTATE_90)  # a point (a, b) of it is now at (b, width - a)
    at = round(x - room), round(y - (cover.width - size - before))
    image.paste(Image.new("RGB", turned.size, mark.fill), at, turned)


@cache
def pillow_font(size: int, name: str | None = None) -> Any:
    """Pillow's own font, or a system font; None if it is not installed."""
    from PIL import ImageFont

    if name is None:
        return ImageFont.load_default(size)
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        return None


@cache
def has_letter(size: int, name: str | None, letter: str) -> bool:
    """Whether a font has a glyph for a letter, that is, does not draw its missing-glyph sign."""
    font = pillow_font(size, name)
    if letter.isspace():
        return True
    return bytes(font.getmask(letter)) != bytes(font.getmask(NO_CHARACTER))


def readable(text: str, size: int) -> tuple[str, Any]:
    """The text, and the font with most of its letters; missing ones are replaced by `plain_letter`."""
    letters = {c for c in text if not unicodedata.combining(c)}
    best, most = None, -1
    for name in (None, *OTHER_FONTS):
        if pillow_font(size, name) is None:
            continue
        known = sum(has_letter(size, name, c) for c in letters)
        best, most = (name, known) if known > most else (best, most)
        if most == len(letters):
            return text, pillow_font(size, best)
    written = "".join(c if has_letter(size, best, c) else plain_letter(c, size, best) for c in text)
    return written, pillow_font(size, best)


def plain_letter(letter: str, size: int, font: str | None) -> str:
    """A letter without its accents or, if the font lacks that too, its escaped code point."""
    bare = "".join(c for c in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(c))
    if bare and all(has_letter(size, font, c) for c in bare):
        return bare
    return "" if unicodedata.combining(letter) else letter.encode("unicode_escape").decode("ascii")

"""Position encodings as PNG files, rendered without a display: heat maps and line plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.errors import UserError
from anyformer.extras import require
from anyformer.inspection.positions import Arrays, PositionSizes, position_arrays, position_kinds
from anyformer.safe_files import make_folder, replace_file

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn

INK, SOFT, HAIR, PAPER = (32, 33, 36), (95, 99, 104), (218, 220, 224), (255, 255, 255)
# Okabe and Ito's palette for colour-blind readers.
LINES = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (230, 159, 0), (0, 0, 0), (140,) * 3,
)  # fmt: skip
LOW, MIDDLE, HIGH = np.array([33, 90, 160]), np.array([247, 247, 247]), np.array([196, 86, 14])  # blue, white, orange
SIDE, MARGIN = 480, 56  # pixels of a map's longer side, and of the margin for text
CURVES = (2, 50)  # positions whose vectors are drawn as curves


def position_pictures(
    folder: str | Path, model: nn.Module | None = None, *, length: int = 64, width: int = 64
) -> Arrays:
    """Write one PNG for each figure of positions and return the plotted arrays by file name.

    Sinusoids, rotary positions, ALiBi and T5's buckets are always included; a learned table and Shaw's vectors if the
    model has them. `length` and `width` are the numbers of positions and channels shown.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> drawn = position_pictures(folder, length=16, width=8)
    >>> drawn["sinusoid-map"].shape, (Path(folder) / "sinusoid-map.png").is_file()
    ((16, 8), True)
    """
    require("PIL", "pictures need")
    sizes, place = PositionSizes(length=length, width=width), Path(folder)
    if place.exists() and not place.is_dir():
        raise UserError("this is a file", where=str(place), fix="give a folder")
    make_folder(place)
    drawn: Arrays = {}
    for found in position_kinds(model):
        arrays = position_arrays(found.kind, model, sizes).arrays
        for name, (array, picture) in PICTURES[found.kind](arrays).items():
            drawn[name] = array
            save(picture, place / f"{name}.png")
    return drawn


Drawn = dict[str, tuple[np.ndarray, "Image"]]


def sinusoid_pictures(arrays: Arrays) -> Drawn:
    table, chosen = arrays["table"], [p for p in CURVES if p < len(arrays["table"])]
    places = sorted({0, 1, 4, table.shape[1] // 4 * 2, table.shape[1] - 2} & set(range(table.shape[1])))
    named, channels = [f"position {p}" for p in chosen], [f"channel {c}" for c in places]
    found: Drawn = {
        "sinusoid-map": (table, heat_map(table, "sinusoids", "position", "channel")),
        "sinusoid-positions": (table[chosen], curves(table[chosen], "one position", "channel", named)),
        "sinusoid-channels": (table[:, places], curves(table[:, places].T, "one channel", "position", channels)),
        "sinusoid-products": (arrays["products"], heat_map(arrays["products"], "dot products", "position", "position")),
        "sinusoid-distance": (arrays["distance"], curves(arrays["distance"][None], "dot product", "distance")),
    }
    if "counter" in arrays:
        gap = np.zeros((len(arrays["counter"]), 1))
        beside = np.concatenate([arrays["counter"] * 2.0 - 1.0, gap, arrays["waves"], gap, arrays["small"]], 1)
        title = "binary counter 0 to 15 | waves of its bits | sinusoids"
        found["binary-counter"] = (beside, heat_map(beside, title, "number", "bit, channel"))
    return found


def learned_pictures(arrays: Arrays) -> Drawn:
    return {
        "learned-map": (arrays["table"], heat_map(arrays["table"], "learned positions", "position", "channel")),
        "learned-similarity": (arrays["similarity"], heat_map(arrays["similarity"], "cosine", "position", "position")),
        "learned-distance": (arrays["distance"], curves(arrays["distance"][None], "mean cosine", "distance")),
    }


def rope_pictures(arrays: Arrays) -> Drawn:
    names = ["plain", "linear", "ntk", "yarn"] if len(arrays["scaled_distance"]) == 4 else ["plain", "linear", "yarn"]
    scaled = arrays["scaled_distance"]
    return {
        "rope-cosines": (arrays["cos"], heat_map(arrays["cos"], "cosines of the angles", "position", "pair")),
        "rope-scores": (arrays["scores"], heat_map(arrays["scores"], "score of equal vectors", "query m", "key n")),
        "rope-distance": (arrays["distance"], curves(arrays["distance"][None], "score of equal vectors", "m - n")),
        "rope-scaling": (scaled, curves(scaled, "score by scaling", "m - n", names)),
    }


def alibi_pictures(arrays: Arrays) -> Drawn:
    heads = [f"head {h}" for h in range(len(arrays["bias"]))]
    return {
        "alibi-slopes": (arrays["slopes"], curves(arrays["slopes"][None], "slope", "head")),
        "alibi-distance": (arrays["distance"], curves(arrays["distance"][: len(heads)], "bias", "distance", heads)),
        "alibi-bias": (arrays["bias"][0], heat_map(arrays["bias"][0], "bias of head 0", "query", "key")),
    }


def bucket_pictures(arrays: Arrays) -> Drawn:
    buckets = arrays["buckets"].astype(np.float32)
    found = {
        "buckets-offset": (buckets, curves(buckets[None], "bucket", "key - query, from the left end")),
        "buckets-matrix": (arrays["matrix"], heat_map(arrays["matrix"].astype(np.float32), "bucket", "query", "key")),
    }
    if "bias" in arrays:
        bias = arrays["bias"][: len(LINES)]
        heads = [f"head {h}" for h in range(len(bias))]
        found["buckets-bias"] = (bias, curves(bias, "learned bias", "key - query, from the left end", heads))
    return found


def shaw_pictures(arrays: Arrays) -> Drawn:
    norms = arrays["norms"]
    return {
        "shaw-keys": (arrays["keys"], heat_map(arrays["keys"], "vectors of distances", "distance", "channel")),
        "shaw-similarity": (arrays["similarity"], heat_map(arrays["similarity"], "cosine", "distance", "distance")),
        "shaw-norms": (norms, curves(norms[None], "length of the vector", "distance, from -k to k")),
    }  # fmt: skip


PICTURES: dict[str, Any] = {
    "sinusoid": sinusoid_pictures, "learned": learned_pictures, "rope": rope_pictures, "alibi": alibi_pictures,
    "buckets": bucket_pictures, "shaw": shaw_pictures,
}  # fmt: skip


# ---------------------------------------------------------------- drawing


def coloured(values: np.ndarray) -> np.ndarray:
    """Numbers as diverging colours (rows, columns, 3): 0 is white, negative blue, positive orange."""
    share = values / (np.abs(values).max() or 1.0)
    ends = np.where(share[..., None] < 0, LOW, HIGH)
    return np.rint(MIDDLE + (ends - MIDDLE) * np.abs(share)[..., None]).astype(np.uint8)


def heat_map(values: np.ndarray, title: str, down: str, across: str) -> Image:
    """A heat map with its title, axis labels and range."""
    from PIL import Image, ImageDraw

    rows, columns = values.shape
    cell = max(1, SIDE // max(rows, columns))
    body = Image.fromarray(coloured(values)).resize((columns * cell, rows * cell), Image.Resampling.NEAREST)
    page = Image.new("RGB", (max(body.width, 360) + 2 * MARGIN, body.height + 2 * MARGIN), PAPER)
    page.paste(body, (MARGIN, MARGIN))
    pen = ImageDraw.Draw(page)
    pen.rectangle((MARGIN - 1, MARGIN - 1, MARGIN + body.width, MARGIN + body.height), outline=HAIR)
    pen.text((MARGIN, 16), title, fill=INK)
    ends = f"blue {values.min():.3g}, white 0, orange {values.max():.3g}"
    pen.text((MARGIN, 32), f"{down} down, {across} across; {ends}", fill=SOFT)
    for at, words in ((0, "0"), (rows - 1, str(rows - 1))):
        pen.text((8, MARGIN + at * cell), words, fill=SOFT)
    for at, words in ((0, "0"), (columns - 1, str(columns - 1))):
        pen.text((MARGIN + at * cell, MARGIN + body.height + 6), words, fill=SOFT)
    return page


def curves(lines: np.ndarray, title: str, across: str, names: Sequence[str] = ()) -> Image:
    """A line plot (N, points), each line labelled at its right end."""
    from PIL import Image, ImageDraw

    wide, high = SIDE + 160, SIDE // 2
    page = Image.new("RGB", (wide + 2 * MARGIN + 96, high + 2 * MARGIN), PAPER)
    pen = ImageDraw.Draw(page)
    low, top = float(lines.min()), float(lines.max())
    span, points = (top - low) or 1.0, lines.shape[1]
    if low < 0 < top:
        zero = MARGIN + high * top / span
        pen.line((MARGIN, zero, MARGIN + wide, zero), fill=HAIR)
    pen.rectangle((MARGIN, MARGIN, MARGIN + wide, MARGIN + high), outline=HAIR)
    for number, line in enumerate(lines):
        x = MARGIN + wide * np.arange(points) / max(1, points - 1)
        xy = list(zip(x.tolist(), (MARGIN + high * (top - line) / span).tolist(), strict=True))
        colour = LINES[number % len(LINES)]
        pen.line(xy, fill=colour, width=2)
        if names:
            pen.text((MARGIN + wide + 8, MARGIN + 16 * number), names[number], fill=colour)
    pen.text((MARGIN, 16), title, fill=INK)
    pen.text((MARGIN, 32), f"{across} across, from 0 to {points - 1}", fill=SOFT)
    pen.text((4, MARGIN), f"{top:.3g}", fill=SOFT)
    pen.text((4, MARGIN + high - 12), f"{low:.3g}", fill=SOFT)
    return page


def save(picture: Image, path: Path) -> None:
    """Write an image as PNG, atomically."""
    from io import BytesIO

    data = BytesIO()
    picture.save(data, "PNG", optimize=True)
    replace_file(path, data.getvalue())

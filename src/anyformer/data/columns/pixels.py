"""Columns that are the pixels of small images, one image per row: `label,pixel0,...,pixel783`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from anyformer.data.columns.look import Facts
from anyformer.data.columns.number import Number

LEAST = 64  # pixels: 8 x 8
BRIGHTEST = 255
SPAN = re.compile(r"whole numbers from (\d+) to (\d+)$")


def side_of_images(facts: Mapping[str, Facts], constant: Iterable[str]) -> tuple[int, int] | None:
    """Side and channels of square images whose pixels these columns are; None if they are not.

    Their names differ only in a number, their cells are integers up to 255, and their count is a square or three times
    one. `constant` are further columns with a single value, such as the borders of images.
    """
    names = [name for name, seen in facts.items() if is_brightness(seen)]
    stems = Counter(re.sub(r"\d+", "#", name) for name in (*names, *constant))
    stem, count = stems.most_common(1)[0] if stems else ("", 0)
    if "#" not in stem or count < LEAST or sum(re.sub(r"\d+", "#", name) == stem for name in names) < count / 4:
        return None
    return next(((side, channels) for channels in (1, 3) for side in (math.isqrt(count // channels),)
                 if side * side * channels == count), None)  # fmt: skip


def is_brightness(seen: Facts) -> bool:
    """Whether cells may be pixels."""
    span = SPAN.match(seen.reason)
    return seen.kind == Number.kind and not seen.missing and span is not None and int(span[2]) <= BRIGHTEST

"""Curves of any magnitude, on the terminal's canvas: losses of 1e-4 and of 1e6 get axes that can be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from rich.text import Text

from anyformer.terminal import Canvas, CurveSeries
from anyformer.terminal.curve import QUARTERS

Point = tuple[float, float]

EARLY = 0.1  # fraction of the curve that may be clipped: the first steps fall so far that the rest would look flat
NEAR = 1.0  # a level line is drawn if it is at most this many curve heights away


def plot(
    series: Sequence[CurveSeries],
    width: int,
    height: int,
    *,
    x_range: tuple[float, float],
    x_words: tuple[str, str] = ("", ""),
    levels: Sequence[tuple[float, str]] = (),
    ascii_only: bool = False,
) -> list[Text]:
    """A plot as `height` lines of `width` characters, axes included.

    >>> lines = plot([CurveSeries([(0, 3e-4), (1, 2e-4), (2, 1e-4)])], 24, 6, x_range=(0, 2), ascii_only=True)
    >>> [len(line.plain) for line in lines]
    [24, 24, 24, 24, 24, 24]
    """
    low, high = heights(series, [level for level, _ in levels])
    rows = max(1, height - 2)
    labels = ticks(low, high, rows)
    margin = max(map(len, labels)) + 2
    canvas = Canvas(max(1, width - margin), rows, ascii_only)
    left, right = x_range

    def place(point: Point) -> tuple[int, int]:
        across = (point[0] - left) / (right - left) if right > left else 0.0
        return round(across * (2 * canvas.width - 1)), round((high - point[1]) / (high - low) * (2 * rows - 1))

    for one in series:
        points = [point for point in one.points if math.isfinite(point[1])]
        if one.joined:
            dots = [place(point) for point in thin(points, 2 * canvas.width)]
            for start, end in zip(dots, dots[1:] or dots, strict=False):
                canvas.line(bound_dot(start, rows), bound_dot(end, rows), one.style, one.mark)
        for x, y in () if one.joined else map(place, points):
            canvas.put(x, y, one.mark, one.style)
    for value, style in levels:
        canvas.level(place((left, value))[1], style)

    wall, tick, corner, floor = ("|", "|", "+", "-") if ascii_only else ("│", "┤", "└", "─")
    out = []
    for label, row in zip(labels, drawn_rows(canvas), strict=True):
        out.append(Text().append(f"{label:>{margin - 2}} {tick if label else wall}", "dim").append_text(row))
    out.append(Text(" " * (margin - 1) + corner + floor * canvas.width, "dim", no_wrap=True))
    first, last = x_words
    below = first + last.rjust(max(0, canvas.width - len(first)))
    out.append(Text(" " * margin + below[: canvas.width].ljust(canvas.width), "dim", no_wrap=True))
    return out[-height:] if height < len(out) else out


def drawn_rows(canvas: Canvas) -> list[Text]:
    """The canvas line by line, runs of one style as one piece: a fifth of the time of one piece per character."""
    out = []
    for row in range(canvas.height):
        cells = [
            (
                canvas.styles.get((row, column), ""),
                canvas.marks.get((row, column), " " if canvas.ascii_only else QUARTERS[canvas.bits[row][column]]),
            )
            for column in range(canvas.width)
        ]
        line = Text(no_wrap=True)
        for style, group in groupby(cells, key=itemgetter(0)):
            line.append("".join(mark for _, mark in group), style)
        out.append(line)
    return out


def heights(series: Sequence[CurveSeries], levels: Sequence[float] = ()) -> tuple[float, float]:
    """The y range: all of the later curve; the steep beginning may be clipped at the top.

    >>> low, high = heights([CurveSeries([(step, 10.0 if step < 5 else 2.0 + step / 100) for step in range(100)])])
    >>> round(low, 1), round(high, 1)
    (2.0, 3.0)
    """
    points = [point for one in series for point in one.points if math.isfinite(point[1])]
    if not points:
        return 0.0, 1.0
    start, end = min(x for x, _ in points), max(x for x, _ in points)
    later = [y for x, y in points if x >= start + EARLY * (end - start)]
    low, high = min(y for _, y in points), max(later)
    for level in levels:
        if math.isfinite(level) and low - NEAR * (high - low) <= level <= high + NEAR * (high - low):
            low, high = min(low, level), max(high, level)
    room = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def ticks(low: float, high: float, rows: int) -> list[str]:
    """Axis labels at round numbers, one entry per row; most are empty.

    >>> ticks(0.0, 4.2e-4, 8)
    ['0.0004', '', '', '', '0.0002', '', '', '0.0000']
    """
    labels = [""] * rows
    exponent = math.floor(math.log10(high - low))
    steps = [factor * 10.0**power for power in range(exponent - 1, exponent + 2) for factor in (1, 2, 5)]
    step = next((step for step in steps if 3 * (high - low) / step <= rows), steps[-1])
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    for i in range(math.ceil(low / step), math.floor(high / step) + 1):
        value = i * step
        row = round((high - value) / (high - low) * (2 * rows - 1)) // 2  # where the canvas puts that height
        labels[row] = f"{value:.1e}" if digits > 4 or abs(value) >= 1e6 else f"{value:.{digits}f}"
    return labels


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """Reduce to at most `most` points by averaging neighbours.

    >>> thin([(0, 1), (1, 3), (2, 5), (3, 5)], 2)
    [(0.5, 2.0), (2.5, 5.0)]
    """
    if len(points) <= most:
        return list(points)
    out = []
    for i in range(most):
        part = points[i * len(points) // most : (i + 1) * len(points) // most]
        out.append((sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)))
    return out


def bound_dot(dot: tuple[int, int], rows: int) -> tuple[int, int]:
    """Clamp a dot to near the canvas: a huge loss must not become a million invisible dots."""
    return dot[0], max(-2 * rows, min(4 * rows, dot[1]))

"""Curves drawn with braille dots: eight dots a character, so a small plot still shows the shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

Point = tuple[float, float]

# Bit of each dot in a braille character, by column and row (Unicode block 2800).
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
BRAILLE = 0x2800


@dataclass(frozen=True)
class Series:
    """Points of one line; `joined=False` marks each point by itself."""

    points: Sequence[Point]
    style: str = ""
    joined: bool = True
    mark: str = "*"  # what stands for it where only ASCII can be written, and for points by themselves


class Canvas:
    """Dots, two columns and four rows of them in every character; a character has the colour drawn last."""

    def __init__(self, width: int, height: int, ascii_only: bool = False) -> None:
        self.width, self.height, self.ascii_only = width, height, ascii_only
        self.bits = [[0] * width for _ in range(height)]
        self.marks: dict[tuple[int, int], str] = {}
        self.styles: dict[tuple[int, int], str] = {}

    def dot(self, x: int, y: int, style: str = "", mark: str = "*") -> None:
        """Set the dot at column x from the left and row y from the top; outside the canvas nothing happens."""
        if not (0 <= x < 2 * self.width and 0 <= y < 4 * self.height):
            return
        column, row = x // 2, y // 4
        self.bits[row][column] |= DOTS[x % 2][y % 4]
        self.styles[row, column] = style
        if self.ascii_only:
            self.marks[row, column] = mark

    def line(self, start: tuple[int, int], end: tuple[int, int], style: str = "", mark: str = "*") -> None:
        """Dots from start to end, both included."""
        (x0, y0), (x1, y1) = start, end
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            self.dot(round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps), style, mark)

    def put(self, x: int, y: int, mark: str, style: str = "") -> None:
        """A whole character where the dot (x, y) would be."""
        if 0 <= x < 2 * self.width and 0 <= y < 4 * self.height:
            self.marks[y // 4, x // 2], self.styles[y // 4, x // 2] = mark, style

    def rows(self) -> list[Text]:
        """The characters, one line each."""
        out = []
        for row in range(self.height):
            line = Text(no_wrap=True)
            for column in range(self.width):
                bits = self.bits[row][column]
                empty = " " if not bits else "*" if self.ascii_only else chr(BRAILLE + bits)
                line.append(self.marks.get((row, column), empty), self.styles.get((row, column), ""))
            out.append(line)
        return out


def curve(
    series: Sequence[Series],
    width: int,
    height: int,
    *,
    x_range: tuple[float, float],
    y_range: tuple[float, float] | None = None,
    x_words: tuple[str, str] = ("", ""),
    ascii_only: bool = False,
) -> Text:
    """A plot of `width` x `height` characters, axes included; `x_words` stand under the two ends of the x-axis.

    >>> plot = curve([Series([(0, 3), (1, 2), (2, 1)])], 20, 5, x_range=(0, 2), ascii_only=True)
    >>> [len(line) for line in plot.plain.splitlines()]
    [20, 20, 20, 20, 20]
    """
    low, high = nice(series) if y_range is None else y_range
    left, right = x_range
    labels = tick_labels(low, high, height - 2)
    margin = max(map(len, labels)) + 2
    canvas = Canvas(max(1, width - margin), max(1, height - 2), ascii_only)

    def place(point: Point) -> tuple[int, int]:
        across = (point[0] - left) / (right - left) if right > left else 0.0
        down = (high - point[1]) / (high - low) if high > low else 0.0
        return round(across * (2 * canvas.width - 1)), round(down * (4 * canvas.height - 1))

    for one in series:
        dots = [place(point) for point in one.points if math.isfinite(point[1])]
        if not one.joined:
            for x, y in dots:
                canvas.put(x, y, one.mark, one.style)
        else:
            for start, end in zip(dots, dots[1:] or dots, strict=False):
                canvas.line(start, end, one.style, one.mark)

    wall, corner, floor = ("|", "+", "-") if ascii_only else ("┤", "└", "─")
    out = Text(no_wrap=True)
    for label, row in zip(labels, canvas.rows(), strict=True):
        out.append(f"{label:>{margin - 2}} {wall if label or ascii_only else '│'}", "dim").append_text(row).append("\n")
    out.append(" " * (margin - 1) + corner + floor * canvas.width + "\n", "dim")
    room = width - margin
    first, last = x_words
    out.append(" " * margin + (first + last.rjust(max(0, room - len(first))))[:room].ljust(room), "dim")
    return out


def nice(series: Sequence[Series]) -> tuple[float, float]:
    """A range of y that holds every point, with ends on halves."""
    heights = [y for one in series for _, y in one.points if math.isfinite(y)] or [0.0, 1.0]
    low, high = math.floor(2 * min(heights)) / 2, math.ceil(2 * max(heights)) / 2
    return (low, high) if high > low else (low, low + 0.5)


def tick_labels(low: float, high: float, rows: int) -> list[str]:
    """The number at the top, the bottom and about every third row between; other rows have none."""
    rows = max(1, rows)
    every = 3 if rows > 4 else 2
    numbered = {0, rows - 1} | {row for row in range(0, rows - 2, every)}
    return [
        f"{high - (high - low) * (row / (rows - 1) if rows > 1 else 0):.2f}" if row in numbered else ""
        for row in range(rows)
    ]

"""Curves drawn with quarter blocks: four dots per character, from the Unicode block elements of every terminal font."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

Point = tuple[float, float]

STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)  # candidate tick distances of the y-axis

# The character with these quarters filled: upper left 1, upper right 2, lower left 4, lower right 8.
QUARTERS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"


@dataclass(frozen=True)
class CurveSeries:
    """Points of one line; `joined=False` draws `mark` at each point instead."""

    points: Sequence[Point]
    style: str = ""
    joined: bool = True
    mark: str = "*"  # also draws the line in ASCII-only output


class Canvas:
    """A grid of dots, 2 x 2 per character; a character has the colour drawn last."""

    def __init__(self, width: int, height: int, ascii_only: bool = False) -> None:
        self.width, self.height, self.ascii_only = width, height, ascii_only
        self.bits = [[0] * width for _ in range(height)]
        self.marks: dict[tuple[int, int], str] = {}
        self.styles: dict[tuple[int, int], str] = {}

    def dot(self, x: int, y: int, style: str = "", mark: str = "*") -> None:
        """Set the dot at column x from the left and row y from the top; dots outside the canvas are ignored."""
        if not (0 <= x < 2 * self.width and 0 <= y < 2 * self.height):
            return
        column, row = x // 2, y // 2
        if not self.bits[row][column]:
            self.marks.pop((row, column), None)  # a line replaces a mark
        self.bits[row][column] |= 1 << (x % 2 + 2 * (y % 2))
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
        """Draw a whole character at the dot (x, y)."""
        if 0 <= x < 2 * self.width and 0 <= y < 2 * self.height:
            self.marks[y // 2, x // 2], self.styles[y // 2, x // 2] = mark, style

    def level(self, y: int, style: str = "") -> None:
        """A thin horizontal line behind everything else."""
        row = y // 2
        for column in range(self.width) if 0 <= row < self.height else ():
            if not self.bits[row][column] and (row, column) not in self.marks:
                self.marks[row, column], self.styles[row, column] = "-" if self.ascii_only else "─", style

    def rows(self) -> list[Text]:
        """The canvas as lines of text."""
        out = []
        for row in range(self.height):
            line = Text(no_wrap=True)
            for column in range(self.width):
                bits = self.bits[row][column]
                drawn = " " if self.ascii_only else QUARTERS[bits]
                line.append(self.marks.get((row, column), drawn), self.styles.get((row, column), ""))
            out.append(line)
        return out


def curve(
    series: Sequence[CurveSeries],
    width: int,
    height: int,
    *,
    x_range: tuple[float, float],
    y_range: tuple[float, float] | None = None,
    x_words: tuple[str, str] = ("", ""),
    levels: Sequence[tuple[float, str]] = (),
    ascii_only: bool = False,
) -> Text:
    """A plot of `width` x `height` characters, axes included.

    `levels` are heights and styles of thin horizontal lines; `x_words` are the labels of both ends of the x-axis.

    >>> plot = curve([CurveSeries([(0, 3), (1, 2), (2, 1)])], 20, 5, x_range=(0, 2), ascii_only=True)
    >>> [len(line) for line in plot.plain.splitlines()]
    [20, 20, 20, 20, 20]
    """
    low, high = (
        nice([y for one in series for _, y in one.points] + [y for y, _ in levels]) if y_range is None else y_range
    )
    left, right = x_range
    labels = tick_labels(low, high, height - 2)
    margin = max(map(len, labels)) + 2
    canvas = Canvas(max(1, width - margin), max(1, height - 2), ascii_only)

    def place(point: Point) -> tuple[int, int]:
        across = (point[0] - left) / (right - left) if right > left else 0.0
        down = (high - point[1]) / (high - low) if high > low else 0.0
        return round(across * (2 * canvas.width - 1)), round(down * (2 * canvas.height - 1))

    for one in series:
        dots = [place(point) for point in one.points if math.isfinite(point[1])]
        if one.joined:
            for start, end in zip(dots, dots[1:] or dots, strict=False):
                canvas.line(start, end, one.style, one.mark)
        for x, y in () if one.joined else dots:
            canvas.put(x, y, one.mark, one.style)
    for value, style in levels:
        canvas.level(place((left, value))[1], style)

    wall, corner, floor = ("|", "+", "-") if ascii_only else ("┤", "└", "─")
    out = Text(no_wrap=True)
    for label, row in zip(labels, canvas.rows(), strict=True):
        out.append(f"{label:>{margin - 2}} {wall if label or ascii_only else '│'}", "dim").append_text(row).append("\n")
    out.append(" " * (margin - 1) + corner + floor * canvas.width + "\n", "dim")
    room = width - margin
    first, last = x_words
    out.append(" " * margin + (first + last.rjust(max(0, room - len(first))))[:room].ljust(room), "dim")
    return out


def nice(heights: Sequence[float]) -> tuple[float, float]:
    """A range that contains all heights, with a margin below, rounded to tenths.

    >>> nice([1.79, 4.24])
    (1.7, 4.3)
    """
    finite = [height for height in heights if math.isfinite(height)] or [0.0, 1.0]
    low, high = math.floor(10 * min(finite) - 0.5) / 10, math.ceil(10 * max(finite)) / 10
    return (low, high) if high > low else (low, low + 1.0)


def tick_labels(low: float, high: float, rows: int) -> list[str]:
    """Tick labels per row, empty for most rows.

    >>> tick_labels(1.7, 4.3, 8)
    ['', '4.0', '', '', '3.0', '', '2.0', '']
    """
    labels = [""] * max(1, rows)
    if rows < 2 or high <= low:
        return [f"{high:.1f}"] + labels[1:]
    step = next((step for step in STEPS if 3 * (high - low) / step <= rows), STEPS[-1])
    for i in range(math.ceil(low / step), math.floor(high / step) + 1):
        row = round((high - i * step) / (high - low) * (2 * rows - 1)) // 2  # the canvas row of that height
        labels[row] = f"{i * step:.1f}"
    return labels

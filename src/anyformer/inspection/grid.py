"""Building blocks of figures: a matrix with token labels, named bars, line charts, captions, colour bars.

Each is measured on creation and drawn later, so that a figure knows its size before its first mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anyformer.evaluation.svg import Scale, around, tick_word, ticks
from anyformer.inspection.canvas import (
    HAIR,
    INK,
    SOFT,
    Curve,
    Label,
    Mark,
    Pixels,
    Rectangle,
    Stroke,
    shown,
    text_width,
)
from anyformer.inspection.palette import CATEGORIES, DASHES, coloured, hex_of, ink_on, signed_colours, value_at

TYPE, SMALL = 11.0, 9.5  # font sizes
LINE = 13.0  # line height
MOST_CELLS = 64 * 64  # most cells drawn one by one, so that an SVG stays sharp in every viewer; more become one image
LONGEST_LABEL = 18  # letters
KEY_PLACES = [1 - (i + 0.5) / 48 for i in range(48)]  # of a colour bar, from the top
BLUE, ORANGE = "#3f78b8", "#d07a2d"  # of bars above and below 0


def cut(text: str, most: int = LONGEST_LABEL) -> str:
    """A label of bounded length, without surrounding spaces; a whitespace token is named.

    >>> cut(" boy"), cut("  "), cut("x" * 30, 8)
    ('boy', '(space)', 'xxxxxxx…')
    """
    bare = text.strip()
    if not bare:
        bare = "(line end)" if "\n" in text else "(tab)" if "\t" in text else "(space)" if text else "(empty)"
    bare = shown(bare)
    return bare if len(bare) <= most else bare[: most - 1] + "…"


def number_text(value: float) -> str:
    """Three significant digits.

    >>> number_text(0.12345), number_text(0), number_text(1.0)
    ('0.123', '0', '1')
    """
    return f"{value:.3g}"


def wrapped(text: str, width: float, size: float, most: int = 3) -> list[str]:
    """Word-wrapped lines no wider than `width`, truncated to `most` lines."""
    lines: list[str] = []
    for word in shown(text).split():
        while text_width(word, size) > width and len(word) > 4:  # a word longer than a line
            fits = next(n for n in range(len(word), 0, -1) if text_width(word[:n], size) <= width or n == 1)
            lines.append(word[:fits])
            word = word[fits:]
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] = f"{lines[-1]} {word}"
        else:
            lines.append(word)
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][:-1].rstrip() + "…"]


@dataclass
class Matrix:
    """A heat map of numbers (T,S) with row and column labels."""

    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    top: float
    scale: str
    side: float = 440.0
    row_axis: str = "query"
    column_axis: str = "key"
    words: Sequence[Sequence[str]] | None = None  # text in the cells
    cell: tuple[float, float] | None = None
    marked: Sequence[int] | None = None  # the outlined column of each row
    ticks: tuple[Sequence[int], Sequence[int]] | None = None  # rows and columns with labels, if not all
    bands: tuple[Sequence[int], Sequence[int]] | None = None  # the segment of each row and column
    signed: bool = False  # diverging colours around 0
    title: str = ""
    up: bool = field(init=False)

    def __post_init__(self) -> None:
        queries, keys = self.values.shape
        if self.cell is None:
            one = min(max(self.side / max(queries, keys), 1.75), 30.0)
            one = float(int(one)) if one >= 4 else one  # whole pixels, if cells are large enough to be seen
            self.cell = (one, one)
        self.rows, self.columns = [cut(t) for t in self.rows], [cut(t) for t in self.columns]
        widest = max((text_width(text, TYPE) for text in self.columns), default=0.0)
        self.up = widest > self.cell[0] - 4
        self.left = max((text_width(self.rows[i], TYPE) for i in self.named(queries, 1)), default=0.0) + 10 + LINE
        named = [text_width(self.columns[i], TYPE) for i in self.named(keys, 0)]
        self.heading = LINE + 4 if self.title else 0.0
        self.above = (max(named, default=0.0) if self.up else LINE) + 10 + LINE + self.heading
        self.wide, self.high = keys * self.cell[0], queries * self.cell[1]

    @property
    def width(self) -> float:
        return self.left + max(self.wide, text_width(self.title, TYPE))

    @property
    def height(self) -> float:
        return self.above + self.high

    @property
    def colours(self) -> np.ndarray:
        if self.signed:
            return signed_colours(self.values, self.top)
        return coloured(self.values, self.top, self.scale)

    def key(self, x: float, y: float, high: float) -> list[Mark]:
        """The colour bar."""
        return signed_key(x, y, high, self.top) if self.signed else colour_key(x, y, high, self.top, self.scale)

    def named(self, count: int, axis: int) -> Sequence[int]:
        """The columns (axis 0) or rows (axis 1) with room for a label: every one, or every n-th."""
        assert self.cell is not None
        if self.ticks is not None:
            return self.ticks[1 - axis]
        return range(0, count, max(1, -int(-LINE // self.cell[axis])) if axis or self.up else 1)

    def draw(self, x: float, y: float) -> list[Mark]:
        assert self.cell is not None
        left, top, (wide, high) = x + self.left, y + self.above, self.cell
        colours = self.colours  # (T,S,3)
        queries, keys = self.values.shape
        marks: list[Mark] = []
        if queries * keys > MOST_CELLS:
            marks.append(Pixels(left, top, self.wide, self.high, colours))
        else:
            marks += [
                Rectangle(left + j * wide, top + i * high, wide, high, fill=hex_of(colours[i, j]))
                for i in range(queries) for j in range(keys)
            ]  # fmt: skip
        marks.append(Rectangle(left, top, self.wide, self.high, stroke=HAIR))
        for i in self.named(queries, 1):
            middle = top + (i + 0.5) * high
            marks.append(Label(left - 8, middle, self.rows[i], TYPE, "end"))
            marks += [Stroke(left - 4, middle, left, middle)] if self.thinned(1, queries) else []
        for j in self.named(keys, 0):
            middle = left + (j + 0.5) * wide
            at = top - 8 if self.up else top - 8 - LINE / 2
            marks.append(Label(middle, at, self.columns[j], TYPE, "start" if self.up else "middle", up=self.up))
            marks += [Stroke(middle, top - 4, middle, top)] if self.thinned(0, keys) else []
        for i, line in enumerate(self.words or ()):
            for j, word in enumerate(line):
                across, down = left + (j + 0.5) * wide, top + (i + 0.5) * high
                marks.append(Label(across, down, word, SMALL, "middle", ink_on(colours[i, j])))
        for i, j in enumerate(self.marked or ()):
            marks.append(
                Rectangle(left + j * wide + 1, top + i * high + 1, wide - 2, high - 2, stroke="#a34700", line=1.5)
            )
        marks += self.parts(left, top) if self.bands is not None else []
        marks.append(Label(x + LINE / 2, top + self.high / 2, self.row_axis, SMALL, "middle", SOFT, up=True))
        marks.append(Label(left + self.wide / 2, y + self.heading + LINE / 2, self.column_axis, SMALL, "middle", SOFT))
        marks += [Label(left, y + LINE / 2, self.title, TYPE)] if self.title else []
        return marks

    def parts(self, left: float, top: float) -> list[Mark]:
        """A coloured band beside the rows and above the columns of each segment, and lines between segments."""
        assert self.cell is not None and self.bands is not None
        marks: list[Mark] = []
        for i, part in enumerate(self.bands[0]):
            y = top + i * self.cell[1]
            marks.append(Rectangle(left - 5, y, 4, self.cell[1], fill=CATEGORIES["light"][part % 8]))
            if i and part != self.bands[0][i - 1]:
                marks.append(Stroke(left, y, left + self.wide, y, INK, 0.75))
        for j, part in enumerate(self.bands[1]):
            x = left + j * self.cell[0]
            marks.append(Rectangle(x, top - 5, self.cell[0], 4, fill=CATEGORIES["light"][part % 8]))
            if j and part != self.bands[1][j - 1]:
                marks.append(Stroke(x, top, x, top + self.high, INK, 0.75))
        return marks

    def thinned(self, axis: int, count: int) -> bool:
        return len(self.named(count, axis)) < count


def colour_key(x: float, y: float, high: float, top: float, scale: str, name: str = "blue") -> list[Mark]:
    """A vertical colour bar from 0 to `top`, with its numbers; about 52 wide."""
    column = coloured(np.array([[value_at(p, top, scale)] for p in KEY_PLACES]), top, scale, name)
    words = [("≤ " if position == 0 and scale == "log" else "")
             + number_text(value_at(position, top, scale) if position or scale == "log" else 0.0)
             for position in (0.0, 0.5, 1.0)]  # fmt: skip
    return key_of(x, y, high, column, words)


def signed_key(x: float, y: float, high: float, top: float) -> list[Mark]:
    """A vertical diverging colour bar from `-top` to `top`."""
    column = signed_colours(np.array([[(2 * p - 1) * top] for p in KEY_PLACES]), top)
    return key_of(x, y, high, column, [number_text(-top), "0", number_text(top)])


def key_of(x: float, y: float, high: float, column: np.ndarray, words: Sequence[str]) -> list[Mark]:
    marks: list[Mark] = [Pixels(x, y, 10, high, column), Rectangle(x, y, 10, high, stroke=HAIR)]
    for position, text in zip((0.0, 0.5, 1.0), words, strict=True):
        level = y + high * (1 - position)
        marks += [Stroke(x + 10, level, x + 13, level, SOFT), Label(x + 16, level, text, SMALL, fill=SOFT)]
    return marks


@dataclass
class Bars:
    """A bar chart of named numbers, in the given order; negative ones are orange."""

    names: Sequence[str]
    values: Sequence[float]
    wide: float = 260.0

    def __post_init__(self) -> None:
        self.names = [cut(name, 28) for name in self.names]
        self.left = max((text_width(name, TYPE) for name in self.names), default=0.0) + 8

    @property
    def width(self) -> float:
        return self.left + self.wide + 48

    @property
    def height(self) -> float:
        return len(self.names) * (LINE + 5)

    def draw(self, x: float, y: float) -> list[Mark]:
        top = max((abs(value) for value in self.values), default=0.0) or 1.0
        marks: list[Mark] = []
        for i, (name, value) in enumerate(zip(self.names, self.values, strict=True)):
            middle = y + (i + 0.5) * (LINE + 5)
            length = self.wide * abs(value) / top
            marks.append(Label(x + self.left - 6, middle, name, TYPE, "end"))
            marks.append(
                Rectangle(x + self.left, middle - 5, max(length, 0.5), 10, fill=BLUE if value >= 0 else ORANGE)
            )
            marks.append(Label(x + self.left + length + 5, middle, number_text(value), SMALL, fill=SOFT))
        marks.append(Stroke(x + self.left, y, x + self.left, y + self.height, HAIR))
        return marks


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: int | None = None  # index of colour and dashes; by default its position


@dataclass
class LineChart:
    """A line chart in the colours and dashes of the page, each line labelled at its right end."""

    series: Sequence[ChartLine]
    across: str
    up: str = ""
    wide: float = 420.0
    high: float = 190.0
    zero: bool = False  # whether the axis begins at 0

    def __post_init__(self) -> None:
        self.series = [one for one in self.series if any(map(np.isfinite, one.ys))]
        low, high = around([y for one in self.series for y in one.ys], zero=self.zero)
        marks = [tick_word(value) for value in ticks(low, high, 4)]
        self.left = max(text_width(mark, SMALL) for mark in marks) + 10
        self.right = max((text_width(one.name, SMALL) for one in self.series), default=0.0) + 12
        self.range = low, high

    @property
    def width(self) -> float:
        return self.left + self.wide + self.right

    @property
    def height(self) -> float:
        return self.high + 2 * LINE + 24

    def draw(self, x: float, y: float) -> list[Mark]:
        left, right, top = x + self.left, x + self.left + self.wide, y + LINE + 8
        bottom = top + self.high
        xs = [value for one in self.series for value in one.xs] or [0.0, 1.0]
        across, up = Scale(min(xs), max(xs), left, right), Scale(*self.range, bottom, top)
        marks: list[Mark] = []
        for value in ticks(*self.range, 4):
            marks.append(Stroke(left, up(value), right, up(value), HAIR, 0.75))
            marks.append(Label(left - 6, up(value), tick_word(value), SMALL, "end", SOFT))
        whole = all(float(value).is_integer() for value in xs)
        for value in ticks(min(xs), max(xs), 6):
            if whole and not value.is_integer():
                continue
            marks.append(Stroke(across(value), bottom, across(value), bottom + 4, SOFT))
            marks.append(Label(across(value), bottom + 4 + LINE / 2, tick_word(value), SMALL, "middle", SOFT))
        marks.append(Stroke(left, bottom, right, bottom, SOFT))
        marks.append(Label((left + right) / 2, bottom + 8 + 1.5 * LINE, self.across, SMALL, "middle", SOFT))
        marks.append(Label(left, y + LINE / 2, self.up, SMALL, fill=SOFT))
        ends = []
        for number, one in enumerate(self.series):
            style = (number if one.style is None else one.style) % len(DASHES)
            colour, dash = CATEGORIES["light"][style], DASHES[style]
            pieces = [[]]  # type: list[list[tuple[float, float]]]
            for a, b in zip(one.xs, one.ys, strict=True):
                if np.isfinite(b):
                    pieces[-1].append((across(a), up(b)))
                elif pieces[-1]:
                    pieces.append([])
            marks += [Curve(tuple(piece), colour, dash=dash) for piece in pieces if len(piece) > 1]
            alone = [piece[0] for piece in pieces if len(piece) == 1]
            marks += [Rectangle(a - 2, b - 2, 4, 4, fill=colour) for a, b in alone]
            last = next(piece for piece in reversed(pieces) if piece)[-1]
            ends.append((last[1], one.name, colour))
        lowest = bottom + LINE - LINE * len(ends)
        level = -np.inf
        for n, (height, name, colour) in enumerate(sorted(ends)):  # labels do not overlap
            level = max(min(height, lowest + LINE * n), level + LINE)
            marks.append(Label(right + 8, level, name, SMALL, fill=colour))
        return marks


def table_marks(
    x: float, y: float, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[Mark], float, float]:
    """A table of text, the first column left-aligned, the others right-aligned; returns also width and height."""
    lines = [head, *[[cut(word, 40) if word else "" for word in row] for row in rows]]
    widths = [max(text_width(line[i], TYPE) for line in lines) + 20 for i in range(len(head))]
    marks: list[Mark] = []
    for n, line in enumerate(lines):
        at, middle = x, y + (n + 0.5) * (LINE + 4)
        for i, (word, wide) in enumerate(zip(line, widths, strict=True)):
            fill = INK if n else SOFT
            marks.append(Label(at, middle, word, TYPE, fill=fill) if i == 0 else
                         Label(at + wide, middle, word, TYPE, "end", fill))  # fmt: skip
            at += wide
        below = y + (n + 1) * (LINE + 4)
        marks += [Stroke(x, below, x + sum(widths), below, HAIR, 0.75)] if n in (0, len(lines) - 2) else []
    return marks, sum(widths), len(lines) * (LINE + 4)


@dataclass
class Caption:
    """The caption below a figure: the model, its input, and what is drawn."""

    model: str
    given: str
    what: str
    width: float

    def __post_init__(self) -> None:
        self.lines = [(line, INK) for line in wrapped(self.model, self.width, TYPE, 2)]
        self.lines += [(line, SOFT) for line in wrapped(f"Input: {self.given}", self.width, SMALL, 2) if self.given]
        self.lines += [(line, SOFT) for line in wrapped(self.what, self.width, SMALL, 4)]

    @property
    def height(self) -> float:
        return len(self.lines) * (LINE + 1)

    def draw(self, x: float, y: float) -> list[Mark]:
        return [
            Label(x, y + (i + 0.5) * (LINE + 1), line, TYPE if fill == INK else SMALL, fill=fill)
            for i, (line, fill) in enumerate(self.lines)
        ]

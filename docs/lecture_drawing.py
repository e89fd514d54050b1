"""Ways to draw for docs/lecture_pictures.py: matrices, curves and points, with the marks of `anyformer look`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.inspection.canvas import HAIR, SOFT, Drawing, Label, Mark, Pixels, Rectangle, Stroke
from anyformer.inspection.figure import draw as draw_view
from anyformer.inspection.grid import TYPE, Matrix, colour_key
from anyformer.inspection.palette import coloured as shades
from anyformer.inspection.position_pictures import coloured
from anyformer.lab.claim import Plot
from anyformer.lab.plot import COLOURS, HEIGHT, WIDTH
from anyformer.lab.plot import draw as draw_plot

EDGE, MOST_CELLS = 12, 150
BLUE, ORANGE, GREEN, PALE = "#0072b2", "#d55e00", "#009e73", "#e8ebef"
Names = Mapping[str, Any]  # what the code of a page has left behind


@dataclass(frozen=True)
class Panel:
    """A matrix with its title; names of rows and columns are left out where none are given."""

    title: str
    values: Any
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    down: str = "query"
    across: str = "key"
    numbers: str = ""  # how a number is written into its cell, if at all
    side: float = 200.0


def matrices(*panels: Panel, scale: str = "linear", title: str = "", apart: bool = False) -> str:
    """Matrices of numbers from 0 up, side by side, one scale of colours for all, or one for each if `apart`."""
    arrays = [np.asarray(panel.values, dtype=float) for panel in panels]
    top = max(float(array.max()) for array in arrays)
    x, high, marks = float(EDGE), 0.0, list[Mark]()
    for panel, array in zip(panels, arrays, strict=True):
        words = [[format(number, panel.numbers) for number in row] for row in array] if panel.numbers else None
        named = ([""] * array.shape[0], [""] * array.shape[1])
        one = min(panel.side / max(array.shape), 40.0)
        cell = float(int(one)) if one >= 4 else one
        drawn = Matrix(
            array, panel.rows or named[0], panel.columns or named[1], float(array.max()) if apart else top, scale,
            row_axis="" if panel.rows else panel.down, column_axis="" if panel.columns else panel.across, words=words,
            cell=(cell, cell), ticks=None if panel.rows or panel.columns else ((), ()),
        )  # fmt: skip
        marks.append(Label(x + drawn.left, EDGE + 6, panel.title, TYPE))
        cells = drawn.draw(x, EDGE + 18)
        if array.size > MOST_CELLS and not words:  # as one picture, which is a tenth of the size
            cells = [mark for mark in cells if not (isinstance(mark, Rectangle) and mark.fill)]
            colours = shades(array, drawn.top, scale)
            marks.append(Pixels(x + drawn.left, EDGE + 18 + drawn.above, drawn.wide, drawn.high, colours))
        marks += cells
        x += drawn.width + 28
        high = max(high, drawn.height + 18)
        if apart or panel is panels[-1]:
            marks += colour_key(x - 16, EDGE + 18 + drawn.above, min(drawn.high, 140.0), drawn.top, scale)
            x += 48
    return Drawing(x, high + 2 * EDGE, title or panels[0].title, marks).svg()


def signed(title: str, values: Any, down: str, across: str, *, side: float = 420.0) -> str:
    """Numbers of both signs: blue below 0, orange above."""
    array = np.asarray(values, dtype=float)
    cell = max(1.0, side // max(array.shape))
    wide, tall = array.shape[1] * cell, array.shape[0] * cell
    about = (f"{across} across, {down} down", f"blue {array.min():.2f}, white 0, orange {array.max():.2f}")
    marks: list[Mark] = [
        Label(EDGE, EDGE + 6, title, TYPE),
        Pixels(EDGE, EDGE + 18, wide, tall, coloured(array)),
        Rectangle(EDGE, EDGE + 18, wide, tall, stroke=HAIR),
        *(Label(EDGE, EDGE + 30 + tall + 14 * row, words, 9.5, fill=SOFT) for row, words in enumerate(about)),
    ]
    return Drawing(max(wide, 380.0) + 2 * EDGE, tall + 58 + EDGE, title, marks).svg()


def signed_row(*panels: Panel, title: str) -> str:
    """Matrices of numbers of both signs side by side, each by its own scale: blue below 0, orange above.

    A panel's `side` is that of one cell; its rows may be named, `down` and `across` stand below it.
    """
    x, high, marks = float(EDGE), 0.0, list[Mark]()
    for panel in panels:
        array = np.atleast_2d(np.asarray(panel.values, dtype=float))
        wide, tall = array.shape[1] * panel.side, array.shape[0] * panel.side
        x += 5.8 * max(map(len, panel.rows), default=0)
        marks += [
            Label(x, EDGE + 6, panel.title, TYPE),
            Pixels(x, EDGE + 18, wide, tall, coloured(array)),
            Rectangle(x, EDGE + 18, wide, tall, stroke=HAIR),
            Label(x, EDGE + 30 + tall, panel.across, 9.5, fill=SOFT),
            Label(x, EDGE + 44 + tall, panel.down, 9.5, fill=SOFT),
        ]
        for row, name in enumerate(panel.rows):
            middle = EDGE + 18 + (row + 0.5) * panel.side
            marks.append(Label(x - 4, middle, name, min(10.0, panel.side + 1), "end", SOFT))
        words = max((len(panel.title) * 6.2, len(panel.across) * 5.2, len(panel.down) * 5.2))
        x += max(wide, words) + 16
        high = max(high, tall)
    end = high + EDGE + (62 if any(panel.down for panel in panels) else 48)
    marks.append(Label(EDGE, end, "blue: below 0, white: 0, orange: above 0", 9.5, fill=SOFT))
    return Drawing(x, end + 10, title, marks).svg()


def bars(title: str, unit: str, parts: Mapping[str, Mapping[str, float]], *, number: str = ",.0f") -> str:
    """A bar for each row, made of named parts end to end; its sum stands behind it."""
    names = list(dict.fromkeys(part for row in parts.values() for part in row))
    hue = dict(zip(names, COLOURS, strict=False))
    left = EDGE + 6.4 * max(map(len, parts)) + 8
    longest = max(sum(row.values()) for row in parts.values())
    marks: list[Mark] = [Label(EDGE, EDGE + 6, title, TYPE)]
    for at, (name, row) in enumerate(parts.items()):
        x, y = left, EDGE + 24 + 26.0 * at
        marks.append(Label(left - 6, y + 9, name, TYPE, "end"))
        for part, value in row.items():
            marks.append(Rectangle(x, y, 330 * value / longest, 18, fill=hue[part]))
            x += 330 * value / longest
        marks.append(Label(x + 6, y + 9, format(sum(row.values()), number), TYPE))
    y, x = EDGE + 36 + 26.0 * len(parts), left
    marks.append(Label(left, y, unit, 9.5, fill=SOFT))
    for part in names if len(names) > 1 else ():
        marks += [Rectangle(x, y + 12, 10, 10, fill=hue[part]), Label(x + 15, y + 17, part, 9.5)]
        x += 30 + 5.6 * len(part)
    return Drawing(max(left + 420.0, x + EDGE), y + (32 if len(names) > 1 else 14), title, marks).svg()


def boxes(title: str, rows: Mapping[str, Sequence[str]], *, wide: float = 76.0, arrows: bool = False) -> str:
    """Rows of words in boxes, one name before each row; columns stand below each other."""
    left = EDGE + 6.2 * max(map(len, rows)) + 10
    marks: list[Mark] = [Label(EDGE, EDGE + 6, title, TYPE)]
    gap = 16.0 if arrows else 4.0
    for at, (name, words) in enumerate(rows.items()):
        y = EDGE + 20 + 28.0 * at
        marks.append(Label(left - 8, y + 11, name, TYPE, "end", SOFT))
        for column, word in enumerate(words):
            x = left + column * (wide + gap)
            marks += [Rectangle(x, y, wide, 22, fill=PALE), Label(x + wide / 2, y + 11, word, 10, "middle")]
            if arrows and column:
                marks.append(Label(x - gap / 2, y + 11, "→", 10, "middle", SOFT))
    most = max(map(len, rows.values()))
    return Drawing(left + most * (wide + gap) + EDGE, EDGE + 24 + 28.0 * len(rows), title, marks).svg()


def cells(title: str, kinds: Sequence[int], legend: Mapping[str, str], *, columns: int = 40) -> str:
    """One small square for each token, coloured by its kind, the place of its name in the legend."""
    colours, one = list(legend.values()), 15.0
    marks: list[Mark] = [Label(EDGE, EDGE + 6, title, TYPE)]
    for at, kind in enumerate(kinds):
        row, column = divmod(at, columns)
        marks.append(Rectangle(EDGE + column * one, EDGE + 18 + row * one, one - 2, one - 2, fill=colours[kind]))
    y, x = EDGE + 32 + one * -(-len(kinds) // columns), float(EDGE)
    for name, colour in legend.items():
        marks += [Rectangle(x, y - 5, 10, 10, fill=colour), Label(x + 15, y, name, 10)]
        x += 36 + 5.8 * len(name)
    return Drawing(max(columns * one, x) + 2 * EDGE, y + 16, title, marks).svg()


def lines(
    title: str, across: str, up: str, curves: Mapping[str, Any], *, log_across: bool = False, log_up: bool = False
) -> str:
    """Curves by their names; points (x, y), or numbers alone, which then stand at 0, 1, 2, ..."""
    made = {
        name: [tuple(map(float, p)) if isinstance(p, tuple) else (float(x), float(p)) for x, p in enumerate(curve)]
        for name, curve in curves.items()
    }
    drawn = draw_plot(Plot(title, across, up, made, log_across=log_across, log_up=log_up))  # type: ignore[arg-type]
    return drawn.replace("<svg ", f'<svg width="{WIDTH}" height="{HEIGHT}" ', 1)


def view(capture: Any, name: str, **chosen: Any) -> str:
    """A view of `anyformer.look`."""
    return draw_view(capture, name, **chosen).svg()


def scatter(title: str, groups: Mapping[str, Any], arrows: Mapping[str, Any]) -> str:
    """Points (x, y) of the plane by group, and directions from the origin."""
    every = np.array([point for points in groups.values() for point in points])
    side, half = 300.0, float(np.abs(every).max()) * 1.08
    colours = ("#d55e00", "#9aa3ad", "#0072b2", "#009e73")

    def at(x: float, y: float) -> tuple[float, float]:
        return EDGE + side * (x / half + 1) / 2, EDGE + 18 + side * (1 - y / half) / 2

    marks: list[Mark] = [Label(EDGE, EDGE + 6, title, TYPE), Rectangle(EDGE, EDGE + 18, side, side, stroke=HAIR)]
    for number, (name, colour) in enumerate(zip([*groups, *arrows], colours, strict=True)):
        marks.append(Label(EDGE + side + 14, EDGE + 30 + 18 * number, name, TYPE, fill=colour))
        for x, y in groups.get(name, ()):
            left, top = at(x, y)
            marks.append(Rectangle(left - 3, top - 3, 6, 6, fill=colour))
        if name in arrows:
            length = float(np.hypot(*arrows[name]))
            end = at(*(0.8 * half * number / length for number in arrows[name]))
            marks.append(Stroke(*at(0, 0), *end, stroke=colour, line=3.0 if name == next(iter(arrows)) else 1.2))
    return Drawing(side + 160, side + 18 + 2 * EDGE, title, marks).svg()

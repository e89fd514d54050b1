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
from anyformer.lab.plot import HEIGHT, WIDTH
from anyformer.lab.plot import draw as draw_plot

EDGE, MOST_CELLS = 12, 150


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

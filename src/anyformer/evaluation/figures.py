"""The figures of a report, made from numbers only: curves, scatter plots, bars, reliability diagrams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.evaluation.run_files import Point, smooth_line, thin_line
from anyformer.evaluation.style import SHADES
from anyformer.evaluation.svg import Scale, around, axes, figure, label, number, path, tag, text_of
from anyformer.inspection.palette import SCALES, place, value_at
from anyformer.plain_text import printable

WIDE, TALL = 640.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 70.0, 34.0, 50.0
SCALE = "sqrt"  # scale of weights on the colours of a heat map
LETTER = 7.5  # approximate width of a label's letter


def loss_curve(train: Sequence[Point], valid: Sequence[Point], best: int | None = None) -> str:
    """Training loss, thin as logged and thick as a running mean, and validation loss with a mark at each evaluation."""
    line, held_out = list(train), list(valid)
    smooth = smooth_line(line)
    settled = smooth[len(smooth) // 50 :] or smooth  # the first steps may start far above the rest
    logged = sorted(y for _, y in line)
    low, high = around([y for _, y in settled + held_out] + logged[len(logged) // 100 : len(logged) // 100 + 1])
    last = max((x for x, _ in line + held_out), default=1.0)
    across = Scale(0, last, LEFT, WIDE - RIGHT)
    up = Scale(low, high, TALL - BOTTOM, TOP)

    def placed(points: Sequence[Point]) -> list[Point]:
        return [(across(x), up(min(max(y, low), high))) for x, y in points]

    parts = [axes(across, up, ("step", "loss"))]
    parts.append(path(placed(thin_line(line)), "raw"))
    parts.append(path(placed(thin_line(smooth)), "line first"))
    parts.append(path(placed(thin_line(held_out)), "line second"))
    parts += [
        tag("circle", cx=x, cy=y, r=3.5, class_="dot second")
        for x, y in placed(held_out if len(held_out) <= 60 else [])
    ]
    if best is not None and (at := [y for x, y in held_out if x == best]):
        parts.append(tag("circle", cx=across(best), cy=up(at[0]), r=7, class_="ring second"))
    ends = [(up(points[-1][1]), words, class_) for points, words, class_ in
            ((smooth, "train", "first"), (held_out, "valid", "second")) if points]  # fmt: skip
    parts += end_labels(ends, across.end)
    return figure(WIDE, TALL, parts, "Loss over the steps of training")


def end_labels(ends: Sequence[tuple[float, str, str]], x: float) -> list[str]:
    """Labels at the right end of lines, moved apart where they would overlap."""
    placed: list[tuple[float, str, str]] = []
    for y, words, class_ in sorted(ends):
        y = max(y, placed[-1][0] + 18) if placed else y
        placed.append((y, words, class_))
    return [label(x + 8, y + 4, words, f"name {class_}") for y, words, class_ in placed]


def small_curve(points: Sequence[Point], name: str, class_: str = "second", marks: bool = False) -> str:
    """One number over the steps."""
    wide, tall = 360.0, 220.0
    across = Scale(0, max((x for x, _ in points), default=1.0), LEFT, wide - 18)
    up = Scale(*around([y for _, y in points], zero=class_ == "third"), tall - BOTTOM, TOP)
    drawn = [(across(x), up(y)) for x, y in thin_line(list(points))]
    dots = [
        tag("circle", cx=x, cy=y, r=3, class_=f"dot {class_}") for x, y in (drawn if marks and len(drawn) <= 60 else [])
    ]
    inside = [axes(across, up, ("step", name), xs=3, ys=4), path(drawn, f"line {class_}"), *dots]
    return figure(wide, tall, inside, f"{name} over the steps of training", "plot small")


def scatter(points: Sequence[Sequence[float]], name: str) -> str:
    """Predicted against true values, with the identity line."""
    side = 400.0
    low, high = around([value for point in points for value in point], room=0.03)
    across, up = Scale(low, high, LEFT, side - 18), Scale(low, high, side - BOTTOM, TOP)
    dots = [tag("circle", cx=across(x), cy=up(y), r=2.5, class_="point") for x, y in points]
    same = path([(across(low), up(low)), (across(high), up(high))], "guide")
    inside = [axes(across, up, (f"true {name}".strip(), f"predicted {name}".strip())), same, *dots]
    return figure(side, side, inside, f"Predicted against true {name or 'values'}", "plot square")


def histogram(counts: Sequence[int], edges: Sequence[float], name: str) -> str:
    """Histogram of the errors around zero."""
    side, tall = 400.0, 400.0
    across = Scale(edges[0], edges[-1], LEFT, side - 18)
    up = Scale(0, max(counts) * 1.05 or 1.0, tall - BOTTOM, TOP)
    bars = [
        tag(
            "rect",
            x=across(a) + 0.5,
            y=up(count),
            width=max(0.5, across(b) - across(a) - 1),
            height=up.start - up(count),
            class_="bar",
        )
        for a, b, count in zip(edges, edges[1:], counts, strict=False)
    ]
    zero = path([(across(0), up.start), (across(0), up.end)], "guide") if edges[0] < 0 < edges[-1] else ""
    inside = [axes(across, up, (f"predicted − true {name}".strip(), "rows"), xs=4), *bars, zero]
    return figure(side, tall, inside, f"How the errors of {name or 'the predictions'} are spread", "plot square")


def reliability(bins: dict[str, Any]) -> str:
    """Predicted against observed probability per bin, with the identity line; dot size shows the count."""
    side = 400.0
    across, up = Scale(0, 1, LEFT, side - 18), Scale(0, 1, side - BOTTOM, TOP)
    same = path([(across(0), up(0)), (across(1), up(1))], "guide")
    filled = [(s, t, c) for s, t, c in zip(bins["said"], bins["true"], bins["count"], strict=True) if c]
    most = max((c for _, _, c in filled), default=1)
    line = path([(across(s), up(t)) for s, t, _ in filled], "line first")
    dots = [tag("circle", cx=across(s), cy=up(t), r=3 + 7 * math.sqrt(c / most), class_="bubble") for s, t, c in filled]
    inside = [axes(across, up, (str(bins["what"]), "share that came true")), same, line, *dots]
    words = f"Calibration: expected error {number(bins['error'])}"
    return figure(side, side, inside, words, "plot square")


def heat_map(
    values: Sequence[Sequence[float]], rows: Sequence[str] | None, columns: Sequence[str] | None, title: str
) -> str:
    """A matrix as shaded cells with its legend, in the colours, scale and words of the page of `anyformer look`."""
    cell = 22.0 if columns is not None else 30.0
    most = max((value for row in values for value in row), default=0.0) or 1.0
    shades = [np.rint(SHADES * place(np.asarray(row), most, SCALE)).astype(int).tolist() for row in values]
    left = 8.0 if rows is None else 16 + LETTER * max((len(short(word)) for word in rows), default=1)
    top = 8.0 if columns is None else 16 + LETTER * max((len(short(word)) for word in columns), default=1)
    wide = max((len(row) for row in values), default=0)
    cells = [
        tag("rect", x=left + j * cell, y=top + i * cell, width=cell - 1, height=cell - 1, class_=f"shade{shade}")
        for i, row in enumerate(shades)
        for j, shade in enumerate(row)
    ]
    words = [label(left - 8, top + (i + 0.65) * cell, short(word), anchor="end") for i, word in enumerate(rows or ())]
    words += [label(left + (j + 0.65) * cell, top - 8, short(word), turn=-90) for j, word in enumerate(columns or ())]
    below = top + len(values) * cell + 24
    strip = [tag("rect", x=left + 24 + 3 * i, y=below - 10, width=3, height=10, class_=f"shade{i}")
             for i in range(SHADES + 1)]  # fmt: skip
    end = left + 24 + 3 * (SHADES + 1)
    said = f"{number(most)} · {SCALES[SCALE]}, middle {number(value_at(0.5, most, SCALE))}"
    strip += [label(left + 16, below, "0", anchor="end"), label(end + 8, below, said)]
    width, height = max(left + wide * cell + 8, end + 16 + LETTER * len(said)), below + 8
    box = f"0 0 {text_of(width)} {text_of(height)}"
    return tag("svg", "".join([*cells, *words, *strip]), viewBox=box, width=width, role="img", aria_label=title,
               class_="heat-map")  # fmt: skip


def short(word: str) -> str:
    """A token as a label: spaces made visible, long ones truncated.

    >>> short(" dog"), short("constantinople"), short("\\n")
    ('·dog', 'constantino…', '↵')
    """
    shown = printable(word.replace(" ", "·").replace("\n", "↵")) or "∅"
    return shown if len(shown) <= 12 else shown[:11] + "…"


def bar(share: float, class_: str) -> str:
    """A horizontal bar for a table cell, proportional to its share; the number is in the cell beside it."""
    width = 100 * min(1.0, max(0.0, share))
    inside = tag("rect", x=0, y=0, width=100, height=12, class_="rail") + tag(
        "rect", x=0, y=0, width=max(0.4, width), height=12, class_=f"bar {class_}"
    )
    return tag("svg", inside, viewBox="0 0 100 12", preserveAspectRatio="none", class_="bar-cell", aria_hidden="true")


def level(share: float) -> int:
    """The shade of a cell from 0 to 10; at least 1 if nonzero."""
    return 0 if share <= 0 else max(1, min(10, round(10 * share)))

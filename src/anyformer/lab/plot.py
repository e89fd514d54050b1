"""Draws a claim's plot as a standalone SVG file, with its own colours."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anyformer.evaluation.svg import Scale, around, figure, label, path, tag, tick_word, ticks
from anyformer.lab.claim import Plot

# Okabe and Ito's palette for colour-blind readers; dashes distinguish the lines as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
DASHES = ("", "6 3", "2 3", "8 3 2 3")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 340, 64, 470, 40, 280
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.axis{stroke:#888}.grid{stroke:#ddd}path{fill:none;stroke-width:2}"
)


def axis_ticks(scale: Scale) -> list[float]:
    """Round tick values of an axis; powers of ten (or of two, over a short range) if it is logarithmic."""
    if not scale.log:
        return ticks(scale.low, scale.high)
    base = 10.0 if scale.high / scale.low >= 300 else 2.0
    first, last = (math.log(value, base) for value in (scale.low, scale.high))
    powers = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
    return [base**power for power in powers[:: max(1, len(powers) // 6)]]


def scale_of(values: Sequence[float], start: float, end: float, *, log: bool) -> Scale:
    """A scale over all finite values; a logarithmic one over the positive ones."""
    if not log:
        return Scale(*around(values), start, end)
    positive = [value for value in values if value > 0 and math.isfinite(value)] or [1.0]
    low, high = min(positive), max(positive)
    return Scale(low, high if high > low else low * 10, start, end, log=True)


def draw(plot: Plot) -> str:
    """The plot as an SVG file."""
    points = [point for line in plot.lines.values() for point in line]
    across = scale_of([x for x, _ in points], LEFT, RIGHT, log=plot.log_across)
    up = scale_of([y for _, y in points], BOTTOM, TOP, log=plot.log_up)
    inside = [tag("rect", width=WIDTH, height=HEIGHT, fill="#ffffff"), tag("style", STYLE)]  # as the text is dark
    for value in axis_ticks(up):
        inside.append(tag("line", x1=LEFT, x2=RIGHT, y1=up(value), y2=up(value), class_="grid"))
        inside.append(label(LEFT - 8, up(value) + 4, tick_word(value), anchor="end"))
    for value in axis_ticks(across):
        inside.append(tag("line", x1=across(value), x2=across(value), y1=BOTTOM, y2=BOTTOM + 5, class_="axis"))
        inside.append(label(across(value), BOTTOM + 20, tick_word(value), anchor="middle"))
    inside.append(tag("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis"))
    inside += [label(RIGHT, BOTTOM + 42, plot.across, "name", "end"), label(LEFT - 8, TOP - 16, plot.up, "name")]
    for number, (name, line) in enumerate(plot.lines.items()):
        drawn = [(across(x), up(y)) for x, y in line if math.isfinite(y) and (y > 0 or not plot.log_up)]
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // 2 % len(DASHES)]
        style = f'stroke="{colour}"' + (f' stroke-dasharray="{dash}"' if dash else "")
        if not plot.apart:
            inside.append(path(drawn, "line").replace('class="line"', style))
        if plot.apart or len(drawn) <= 20:
            inside += [tag("circle", cx=x, cy=y, r=4 if plot.apart else 2.5, fill=colour) for x, y in drawn]
        at = TOP + 8 + 18 * number
        inside.append(
            f'<line x1="{RIGHT + 14}" x2="{RIGHT + 38}" y1="{at - 4}" y2="{at - 4}" stroke-width="2" {style}/>'
        )
        inside.append(label(RIGHT + 44, at, name))
    drawn_svg = figure(WIDTH, HEIGHT, inside, plot.title)
    return drawn_svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)

"""Pictures of a run as SVG, with one white ground for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from anyformer.evaluation.svg import Scale, around, figure, label, path, tag, tick_word, ticks

Line = list[tuple[float, float]]

WIDE = 560  # pixels of a panel, the names of its lines included
COLOURS = ("#1f4e9c", "#c0392b", "#1e8449", "#b9770e", "#6c3483")
STYLE = (
    "text{font:12px sans-serif;fill:#222}.name{font-weight:bold}.axis{stroke:#888}.grid{stroke:#ddd}"
    "path{fill:none;stroke-width:2}"
)


@dataclass(frozen=True)
class Panel:
    """Lines by name between two axes. `doubling`: x in doublings, with a tick at every point; else both are even."""

    x: str
    y: str
    lines: dict[str, Line]
    doubling: bool = True
    log_y: bool = False
    from_zero: bool = True


def draw_panels(panels: Sequence[Panel], title: str) -> str:
    """Panels side by side."""
    return picture(WIDE * len(panels), 310, [draw_panel(one, WIDE * n) for n, one in enumerate(panels)], title)


def draw_panel(panel: Panel, left: float) -> str:
    across, up = scales(panel, left)
    xs = sorted({x for line in panel.lines.values() for x, _ in line})
    parts = []
    for value in decades(up.low, up.high) if panel.log_y else ticks(up.low, up.high, 5):
        parts.append(tag("line", x1=across.start, x2=across.end, y1=up(value), y2=up(value), class_="grid"))
        parts.append(label(across.start - 8, up(value) + 4, tick_word(value), anchor="end"))
    for value in xs if panel.doubling else ticks(xs[0], xs[-1], 5):
        parts.append(tag("line", x1=across(value), x2=across(value), y1=up.start, y2=up.start + 5, class_="axis"))
        parts.append(label(across(value), up.start + 20, size_word(value), anchor="middle"))
    parts.append(tag("line", x1=across.start, x2=across.end, y1=up.start, y2=up.start, class_="axis"))
    parts.append(label(across.end, up.start + 42, panel.x, "name", "end"))
    parts.append(label(left + 16, 26, panel.y, "name"))
    ends = spread_out([up(line[-1][1]) for line in map(sorted, panel.lines.values())])
    for n, (name, line) in enumerate(panel.lines.items()):
        colour = COLOURS[n % len(COLOURS)]
        at = [(across(x), up(y)) for x, y in sorted(line)]
        parts.append(path(at, "line").replace('class="line"', f'stroke="{colour}"'))
        if panel.doubling:
            parts += [tag("circle", cx=x, cy=y, r=3, fill=colour) for x, y in at]
        if len(panel.lines) > 1:
            parts.append(label(across.end + 8, ends[n] + 4, name).replace("<text ", f'<text style="fill:{colour}" '))
    return "".join(parts)


def scales(panel: Panel, left: float) -> tuple[Scale, Scale]:
    points = [point for line in panel.lines.values() for point in line]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low, high = around(ys, zero=panel.from_zero)
    if panel.log_y:
        low, high = min(ys) * 0.8, max(ys) * 1.2
    return (Scale(min(xs), max(xs), left + 70, left + WIDE - 200, log=panel.doubling),
            Scale(low, high, 250, 44, log=panel.log_y))  # fmt: skip


def draw_bars(bars: Sequence[tuple[str, float]], title: str, words: str) -> str:
    """Horizontal bars beside their names, with a line at 1."""
    height, left = 26, 330
    across = Scale(0.0, max(1.1, *(value for _, value in bars)) * 1.05, left, 740)
    inside = [label(left, 22, words, "name")]
    for n, (name, value) in enumerate(bars):
        y = 36 + height * n
        inside.append(label(left - 8, y + 14, name, anchor="end"))
        inside.append(tag("rect", x=left, y=y, width=across(value) - left, height=height - 8,
                          fill=COLOURS[0] if value >= 1 else COLOURS[1]))  # fmt: skip
        inside.append(label(across(value) + 6, y + 14, f"{value:.2f}"))
    bottom = 36 + height * len(bars)
    inside.append(tag("line", x1=across(1), x2=across(1), y1=30, y2=bottom, stroke="#222", stroke_dasharray="4 3"))
    return picture(800, bottom + 14, inside, title)


def picture(width: float, height: float, inside: Sequence[str], title: str) -> str:
    ground = tag("rect", x=0, y=0, width=width, height=height, fill="white")
    drawn = figure(width, height, [f"<title>{escape(title)}</title>", tag("style", STYLE), ground, *inside], title)
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def size_word(value: float) -> str:
    """A tick of sizes, which double: 16,384 is 16k."""
    return f"{value / 1024:.0f}k" if value >= 1024 and value % 1024 == 0 else tick_word(value)


def decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between low and high."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [k * 10.0**p for p in powers for k in (1, 2, 5) if low <= k * 10.0**p <= high]


def spread_out(places: list[float], least: float = 14.0) -> list[float]:
    """The same heights, moved down where two names would overlap."""
    moved = list(places)
    below = -math.inf
    for n in sorted(range(len(places)), key=lambda n: places[n]):
        moved[n] = max(places[n], below + least)
        below = moved[n]
    return moved

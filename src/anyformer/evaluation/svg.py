"""Figures as SVG text: scales, ticks, axes and marks. Colours and font sizes come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]


def tag(name: str, inside: str = "", /, **attributes: str | float | None) -> str:
    """One element; `class_` and `stroke_width` are written as `class` and `stroke-width`, None is left out.

    >>> tag("line", x1=0, x2=1.25, class_="axis")
    '<line x1="0" x2="1.25" class="axis"/>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text_of(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"


def text_of(value: str | float) -> str:
    """An attribute's value, escaped; numbers with at most two decimals."""
    if isinstance(value, str):
        return escape(value)
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def label(
    x: float, y: float, words: str, class_: str = "tick", anchor: str = "start", turn: float | None = None
) -> str:
    """Text at a point."""
    rotate = None if turn is None else f"rotate({turn:g} {text_of(x)} {text_of(y)})"
    return tag("text", escape(words), x=x, y=y, class_=class_, text_anchor=anchor, transform=rotate)


def figure(width: float, height: float, inside: Iterable[str], title: str, class_: str = "plot") -> str:
    """A whole figure; `title` is its label for screen readers."""
    box = f"0 0 {text_of(width)} {text_of(height)}"
    return tag("svg", "".join(inside), viewBox=box, role="img", aria_label=title, class_=class_)


def number(value: float | None) -> str:
    """A formatted number: three significant digits, thousands separated, a dash for None or not finite.

    >>> number(0.12345), number(12345.6), number(1e-05), number(3.0), number(None)
    ('0.123', '12,346', '1e-05', '3', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if value == 0 or (size >= 1000 and size < 1e7):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def step_of(spread: float, count: int) -> float:
    """A round step (1, 2 or 5 times a power of ten) that divides a range into about `count` parts."""
    raw = spread / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    return next((power * k for k in (1, 2, 5, 10) if power * k >= raw * 0.999), power * 10)


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from low to high.

    >>> ticks(0, 1, 5), ticks(1.7, 4.3, 3)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [2.0, 3.0, 4.0])
    """
    if not high > low:
        return [low]
    step = step_of(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.10g}") for i in range(first, last + 1)]


@dataclass(frozen=True)
class Scale:
    """Map from values to coordinates of a figure; `log` for a logarithmic scale."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(max(v, 1e-300)) if self.log else v for v in (self.low, self.high, value))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def around(values: Iterable[float], *, zero: bool = False, room: float = 0.05) -> tuple[float, float]:
    """A range that contains all finite values with a margin, and 0 if `zero`."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    extra = (high - low) * room or abs(high) * 0.1 or 1.0
    return (low if zero and low == 0 else low - extra), (high if zero and high == 0 else high + extra)


def path(points: Sequence[Point], class_: str) -> str:
    """A line through the points."""
    steps = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    return tag("path", d=steps, class_=class_) if points else ""


def axes(across: Scale, up: Scale, words: tuple[str, str], *, xs: int = 5, ys: int = 5) -> str:
    """Grid lines, tick labels and names of both axes."""
    parts = []
    for value in ticks(up.low, up.high, ys):
        y = up(value)
        parts.append(tag("line", x1=across.start, x2=across.end, y1=y, y2=y, class_="grid"))
        parts.append(label(across.start - 8, y + 4, tick_word(value), anchor="end"))
    for value in ticks(across.low, across.high, xs):
        x = across(value)
        parts.append(tag("line", x1=x, x2=x, y1=up.start, y2=up.start + 5, class_="axis"))
        parts.append(label(x, up.start + 20, tick_word(value), anchor="middle"))
    parts.append(tag("line", x1=across.start, x2=across.end, y1=up.start, y2=up.start, class_="axis"))
    parts.append(label(across.end, up.start + 42, words[0], "name", "end"))
    parts.append(label(across.start - 8, up.end - 12, words[1], "name", "start"))
    return "".join(parts)


def tick_word(value: float) -> str:
    """A short tick label: 20k, 1.5M, 0.0003.

    >>> tick_word(20000), tick_word(0.0003), tick_word(1500000), tick_word(0.25)
    ('20k', '0.0003', '1.5M', '0.25')
    """
    size = abs(value)
    for bound, mark in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= bound:
            return f"{value / (1e3 if mark == 'k' else bound):.6g}{mark}"
    return f"{value:.0e}".replace("e-0", "e-") if 0 < size < 1e-4 else f"{value:.6g}"

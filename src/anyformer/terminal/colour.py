"""One colour scale for numbers from 0 to 1, readable by the colour-blind and in grey."""

from __future__ import annotations

# Nine points of viridis (matplotlib, public domain): dark to light, so that lightness alone shows the order.
VIRIDIS = (
    (68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
    (170, 220, 50), (253, 231, 37),
)  # fmt: skip
SHADES = " ░▒▓█"
ASCII_SHADES = " .:*#"


def shade(value: float) -> tuple[int, int, int]:
    """The colour of a number, clipped to 0 to 1.

    >>> shade(0.0), shade(1.0)
    ((68, 1, 84), (253, 231, 37))
    """
    at = min(1.0, max(0.0, value)) * (len(VIRIDIS) - 1)
    low = min(int(at), len(VIRIDIS) - 2)
    part = at - low
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True))
    return red, green, blue


def ink(background: tuple[int, int, int]) -> str:
    """Black or white, whichever is more readable on this background.

    >>> ink((253, 231, 37)), ink((68, 1, 84))
    ('black', 'bright_white')
    """
    red, green, blue = background
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "bright_white"


def on(value: float) -> str:
    """A rich style with the colour of `value` as background."""
    background = shade(value)
    return f"{ink(background)} on rgb({','.join(map(str, background))})"


def grey(value: float, ascii_only: bool = False) -> str:
    """One character, darker for larger numbers, for output without colours.

    >>> grey(0.0), grey(0.5), grey(1.0), grey(1.0, ascii_only=True)
    (' ', '▒', '█', '#')
    """
    marks = ASCII_SHADES if ascii_only else SHADES
    return marks[round(min(1.0, max(0.0, value)) * (len(marks) - 1))]

"""Human-readable numbers: metrics, durations, sizes. Plain ASCII, so that they can be written anywhere."""

from __future__ import annotations

import math

from anyformer.plain_text import printable


def figure(value: float) -> str:
    """A metric with the digits worth comparing.

    >>> figure(1.83214), figure(0.00012), figure(48123.4), figure(float("nan"))
    ('1.832', '1.20e-04', '48,123', 'nan')
    """
    size = abs(value)
    if not math.isfinite(value):
        return str(float(value))
    if size >= 1e7 or 0 < size < 1e-3:
        return f"{value:.2e}"
    return f"{value:,.{0 if size >= 1e4 else 1 if size >= 100 else 2 if size >= 10 else 3 if size >= 1 else 4}f}"


def whole(value: float) -> str:
    """A rate, without digits that would only flicker.

    >>> whole(123456.7), whole(3.14159), whole(0.02), whole(0)
    ('123,457', '3.1', '0.02', '0')
    """
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """A time span in its two largest units.

    >>> duration(8.2), duration(372), duration(7500), duration(190_000)
    ('8 s', '6 min 12 s', '2 h 05 min', '2 d 4 h')
    """
    if not math.isfinite(seconds):
        return "unknown"
    total = max(0, round(seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    if total < 86400:
        return f"{total // 3600} h {total % 3600 // 60:02} min"
    return f"{total // 86400} d {total % 86400 // 3600} h"


def percent(share: float) -> str:
    """A fraction as a percentage.

    >>> percent(0.314), percent(0.004), percent(0)
    ('31 %', '0.4 %', '0 %')
    """
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def bare(text: str) -> str:
    r"""Text without control characters, such as cursor movements; a model in training may write any byte.

    >>> bare("a\tb\x1b[31mc\r\n")
    'a    b\\x1b[31mc\n'
    """
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(map(printable, lines))

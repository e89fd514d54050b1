"""Human-readable counts and bytes, formatted in one place for consistency.

Bytes are binary (GiB) for memory and models, decimal (MB) for files on disk and budgets given in MB.
"""

from __future__ import annotations

from collections.abc import Iterable

Scale = tuple[tuple[str, float], ...]  # (unit, factor) pairs, the largest first

COUNTS: Scale = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3))
UNITS: Scale = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))  # before FLOP and the like
BINARY: Scale = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
DECIMAL: Scale = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3))


def largest_unit(value: float, scale: Iterable[tuple[str, float]]) -> tuple[str, float]:
    """The largest unit not above a number, and its factor; ("", 1) if there is none."""
    return next(((name, step) for name, step in scale if value >= step), ("", 1))


# ---------------------------------------------------------------- counts


def count_text(value: float, unit: str = "", scale: Scale | None = None) -> str:
    """A number with three digits: counts in k, M and B, numbers with a unit with SI prefixes.

    >>> count_text(124439808), count_text(2e9), count_text(8.5e14, "FLOP"), count_text(12), count_text(2e9, scale=UNITS)
    ('124 M', '2 B', '850 TFLOP', '12', '2 G')
    """
    name, step = largest_unit(value, scale or (UNITS if unit else COUNTS))
    return f"{value / step:.3g} {name}{unit}".rstrip()


def count_to_a_tenth(value: float) -> str:
    """A count with one decimal of its unit.

    >>> count_to_a_tenth(124_439_808), count_to_a_tenth(950)
    ('124.4 M', '950')
    """
    name, step = largest_unit(value, COUNTS[2:])
    return f"{value / step:.1f} {name}" if name else str(value)


def millions(value: float) -> str:
    """A number of parameters in millions, for comparisons in one unit.

    >>> millions(124_439_808), millions(41_000)
    ('124.44 M', '0.04 M')
    """
    return f"{value / 1e6:.2f} M"


# ---------------------------------------------------------------- bytes


def binary_bytes(value: float) -> str:
    """Bytes with three digits.

    >>> binary_bytes(38654705664), binary_bytes(1536), binary_bytes(1011 * 2**20)
    ('36 GiB', '1.5 KiB', '1,011 MiB')
    """
    return in_three_digits(value, BINARY)


def decimal_bytes(value: float) -> str:
    """Bytes with three digits, in decimal units.

    >>> decimal_bytes(256_000_000), decimal_bytes(1_234), decimal_bytes(7)
    ('256 MB', '1.23 KB', '7 B')
    """
    return in_three_digits(value, DECIMAL)


def in_three_digits(value: float, scale: Scale) -> str:
    name, step = largest_unit(value, scale)
    if not name:
        return f"{value:.0f} B"
    return f"{value / step:.3g} {name}" if value / step < 1000 else f"{value / step:,.0f} {name}"


def steady_bytes(value: float) -> str:
    """Bytes in a unit that leaves one to four digits, without decimals that would flicker in a live display.

    >>> steady_bytes(812 * 2**20), steady_bytes(3.1 * 2**30), steady_bytes(512)
    ('812 MiB', '3.1 GiB', '512 B')
    """
    name, step = largest_unit(value, BINARY)
    if not name:
        return f"{value:.0f} B"
    return f"{value / step:.{0 if name in ('MiB', 'KiB') or value >= 100 * step else 1}f} {name}"


def megabytes(value: float) -> str:
    """Bytes of prepared data on disk.

    >>> megabytes(12_345_678), megabytes(4_200_000_000)
    ('12.3 MB', '4,200.0 MB')
    """
    return f"{value / 1e6:,.1f} MB"


def gibibytes(value: float, digits: int = 2) -> str:
    """Bytes of a device's memory.

    >>> gibibytes(3 * 2**29), gibibytes(80 * 2**30, 1)
    ('1.50 GiB', '80.0 GiB')
    """
    return f"{value / 2**30:,.{digits}f} GiB"


def mebibytes(value: float) -> str:
    """Bytes of weights in memory.

    >>> mebibytes(475 * 2**20)
    '475 MiB'
    """
    return f"{value / 2**20:,.0f} MiB"

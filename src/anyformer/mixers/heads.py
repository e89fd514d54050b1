"""Shared by self- and cross-attention: head sizes, their checks, and the scale of the scores."""

from __future__ import annotations

from typing import Literal

from anyformer.errors import UserError, check_at_least, check_fraction
from anyformer.slots import HeadSizes

Scale = float | Literal["sqrt", "none"]


def check_heads(where: str, heads: int, kv_heads: int | None, dropout: float, scale: Scale) -> None:
    """Checks that do not need the width."""
    check_at_least(where, "heads", heads, 1, fix="use 1 or more")
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        good = [n for n in (*range(1, 65), heads) if heads % n == 0]
        raise UserError(f"kv_heads {kv_heads} does not divide heads {heads}", where=where,
                        fix=f"use kv_heads {min(good, key=lambda n: abs(n - kv_heads))}")  # fmt: skip
    check_fraction(where, "dropout", dropout, fix="use 0.1")
    if isinstance(scale, float) and scale <= 0:
        raise UserError(f"scale {scale} is not positive", where=where, fix='use "sqrt"')


def head_sizes(width: int, heads: int, kv_heads: int | None, key_size: int | None, value_size: int | None) -> HeadSizes:
    """Head sizes for a model width; defaults are width / heads."""
    if key_size is None and width % heads:
        near = max(heads, round(width / heads) * heads)
        fits = [n for n in range(max(1, heads - 7), min(heads + 8, width + 1)) if width % n == 0]
        also = f" or heads {min(fits, key=lambda n: abs(n - heads))}" if fits else ""
        raise UserError(f"width {width} is not divisible by heads {heads}", where="width",
                        fix=f"try width {near}{also}",
                        details=[f"or heads {', '.join(map(str, fits))}"] if len(fits) > 1 else [])  # fmt: skip
    channels = key_size if key_size is not None else width // heads
    value_channels = value_size if value_size is not None else (key_size if key_size is not None else width // heads)
    return HeadSizes(heads, kv_heads or heads, channels, value_channels)


def scale_of(scale: Scale, channels: int) -> float:
    """The factor on q.k: 1/sqrt(C) keeps their variance at 1 whatever C is (1706.03762, 3.2.1)."""
    if scale == "sqrt":
        return channels**-0.5
    return 1.0 if scale == "none" else float(scale)

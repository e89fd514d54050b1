"""About: the entry of a part in `docs/parts.md`, defined in the part's own file."""

from __future__ import annotations

from typing import NamedTuple


class About(NamedTuple):
    """`formula` in plain signs, `source` an arXiv number or a short reference, `cost` in T, S, D, H, k.

    >>> About("y = x W", "1706.03762", "T D^2").source
    '1706.03762'
    """

    formula: str
    source: str
    cost: str

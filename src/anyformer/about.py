"""About: what `docs/parts.md` says of a part, kept in the file of the part itself."""

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

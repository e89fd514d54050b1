"""Hyena: of order 2, and of order 3 with filters shorter than the texts."""

from __future__ import annotations

from anyformer.mixers.hyena import Hyena

EXAMPLES = {
    Hyena: {
        "hyena": Hyena(longest=32, bands=2, filter_width=8),
        "hyena-three": Hyena(order=3, short=2, longest=6, bands=0, filter_width=6, filter_depth=1),
    },
}
ALIKE = {"hyena-three"}

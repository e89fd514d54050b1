"""Mixers on a grid. The small model around them has 4 x 4 cells and a class token."""

from __future__ import annotations

from anyformer.mixers.axial import Axial
from anyformer.mixers.local_relation import LocalRelation
from anyformer.mixers.window2d import Window2D

EXAMPLES = {
    Window2D: {
        "window2d-shifted": Window2D(heads=4, window=3, shift=True),
        "window2d": Window2D(heads=4, window=2),
        "window2d-wide": Window2D(heads=2, window=7, shift=True, bias=False),
    },
    Axial: {
        "axial": Axial(heads=4, span=5),
        "axial-sum": Axial(heads=2, joined="sum", bias=False),
    },
    LocalRelation: {
        "local-relation": LocalRelation(window=3, share=4),
        "local-relation-product": LocalRelation(window=5, share=6, fit="product"),
        "local-relation-absolute": LocalRelation(window=3, share=1, fit="absolute"),
    },
}
ALIKE = {"window2d", "window2d-wide", "axial-sum", "local-relation-product", "local-relation-absolute"}

"""Learned queries, boxes, and the sinusoids of rows and columns."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.embeds.maps import Maps
from anyformer.embeds.queries import Queries
from anyformer.heads.boxes import Boxes
from anyformer.positions.sinusoid_grid import SinusoidGrid

EXAMPLES = {
    Queries: {"queries": Queries(5), "anchors": Queries(6, anchors=(2, 3))},
    Boxes: {"boxes": Boxes(classes=3)},
    SinusoidGrid: {"sinusoid-grid": SinusoidGrid()},
}


def rows(embed: Queries, batch: int, length: int, seed: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Anything with the batch first will do."""
    return (torch.zeros(batch, length, dtype=dtype),)


def not_of_an_image(parts: dict[str, Any]) -> bool:
    """The layout of the embedding knows no rows and columns."""
    from tests.laws.nets import inputs  # it reads the tables of these files

    embed = parts["embed"].replace(position=None)
    grid = embed.build(parts["width"]).layout(*inputs(embed, 1, 3)).grid
    return isinstance(parts["position"], SinusoidGrid) and grid is None


def nothing_to_add(parts: dict[str, Any]) -> bool:
    return isinstance(parts["embed"], Maps) and parts["embed"].every_layer and parts["position"] is None


INPUTS = {Queries: rows}
APART = {
    "queries",
    "anchors",
}  # a decoder's questions read no input: tests/reference/test_detr.py holds them to the laws
REASONS = {
    r"sinusoids of rows and columns are for images": not_of_an_image,
    r"there is no position to add in every layer": nothing_to_add,
}

"""Parts for two sequences and for images: co-attention, pairs, replaced tokens, regions, pixels."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.embeds.regions import Regions
from anyformer.heads.image_text import ImageTextHead
from anyformer.heads.pair import Pair
from anyformer.heads.pixels import PixelHead
from anyformer.heads.replaced import Replaced
from anyformer.heads.segment import SegmentHead
from anyformer.mixers.co_attention import CoAttention

EXAMPLES = {
    CoAttention: {
        "co-attention": CoAttention(heads=4),
        "co-attention-wide": CoAttention(heads=4, key_size=6, bias=False),
    },
    ImageTextHead: {"image-text": ImageTextHead(patches=PixelHead(values=12))},
    PixelHead: {"pixels": PixelHead(values=12)},
    SegmentHead: {"segment": SegmentHead(classes=3, cell=2)},
    Regions: {
        "regions": Regions(features=5),
        "regions-placed": Regions(features=5, positions=4, segments=2),
    },
    Pair: {
        "pair": Pair(classes=3, features=("first", "second", "difference", "product")),
        "pair-vectors": Pair(features=("product", "first")),
    },
    Replaced: {"replaced": Replaced()},
}
ALIKE = {"co-attention-wide", "pair-vectors", "regions-placed"}


def vectors(embed: Regions, batch: int, length: int, seed: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (torch.randn(batch, length, embed.features, generator=torch.Generator().manual_seed(seed)).to(dtype),)


APART = {"segment"}  # only an image has pixels to label: tests/reference/test_segment.py holds it to its formula
INPUTS = {Regions: vectors}

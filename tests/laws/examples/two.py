"""Parts for two sequences: co-attention, pairs, replaced tokens."""

from __future__ import annotations

from anyformer.heads.pair import Pair
from anyformer.heads.replaced import Replaced
from anyformer.mixers.co_attention import CoAttention

EXAMPLES = {
    CoAttention: {
        "co-attention": CoAttention(heads=4),
        "co-attention-wide": CoAttention(heads=4, key_size=6, bias=False),
    },
    Pair: {
        "pair": Pair(classes=3, features=("first", "second", "difference", "product")),
        "pair-vectors": Pair(features=("product", "first")),
    },
    Replaced: {"replaced": Replaced()},
}
ALIKE = {"co-attention-wide", "pair-vectors"}

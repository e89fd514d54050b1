"""Attention's simpler and cheaper relatives, and mixtures of experts."""

from __future__ import annotations

from anyformer.feeds.experts import Experts
from anyformer.mixers.block_sparse import BlockSparse
from anyformer.mixers.linear_attention import LinearAttention
from anyformer.mixers.local import Local
from anyformer.mixers.low_rank import LowRank
from anyformer.mixers.plain import Plain

EXAMPLES = {
    Plain: {"plain": Plain(), "plain-dot": Plain(score="dot")},
    Local: {"local": Local(heads=4, window=3), "local-gqa": Local(heads=4, window=2, kv_heads=2, bias=False)},
    BlockSparse: {
        "block-sparse": BlockSparse(heads=4, block=2),
        "block-sparse-wide": BlockSparse(heads=4, block=1, local=0, leading=2, kv_heads=1, bias=False),
        "block-sparse-local": BlockSparse(heads=4, block=2, local=2, leading=0),
    },
    LowRank: {
        "low-rank": LowRank(heads=4, rank=3, longest=80),
        "low-rank-wide": LowRank(heads=2, rank=20, longest=24, bias=False),
    },
    LinearAttention: {
        "linear-attention": LinearAttention(heads=4),
        "linear-attention-softplus": LinearAttention(heads=2, feature="softplus", bias=False),
    },
    Experts: {
        "experts": Experts(count=3, top=2, width=12),
        "experts-gated": Experts(count=4, top=2, act="silu", gated=True, bias=False),
        "experts-switch": Experts(count=2, top=1, width=8),
        "experts-all": Experts(count=3, top=3, balance=0.0, renormalise=False, width=8),
    },
}
ALIKE = {
    "plain-dot", "local-gqa", "block-sparse-wide", "block-sparse-local", "low-rank-wide", "linear-attention-softplus",
    "experts-gated", "experts-switch", "experts-all",
}  # fmt: skip

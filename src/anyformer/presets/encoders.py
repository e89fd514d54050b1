"""Encoders of text, bare: with the pooler where the original has one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.feeds.mlp import MLP, Act
from anyformer.heads.pooled import Pooled
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.positions.learned import Learned

POOLER = Pooled(dense=True, act="tanh")


def bert(
    width: int, depth: int, heads: int, *, vocab: int = 30522, length: int = 512, offset: int = 0, segments: int = 2,
    inner: int | None = None, feed: int | None = None, act: Act = "gelu", eps: float = 1e-12, groups: int | None = None,
    pooler: bool = True, dropout: float = 0.1,
) -> Model:  # fmt: skip
    """Post-norm, learned positions, a norm after the embedding (1810.04805); relatives differ in a few numbers."""
    norm = LayerNorm(eps=eps)
    block = Block(
        mixer=Attention(heads=heads, dropout=dropout),
        feed=MLP(width=feed, act=act),
        norm=norm,
        place="post",
        dropout=dropout,
    )
    embed = Tokens(
        vocab=vocab, position=Learned(length, offset=offset), segments=segments, norm=norm, inner=inner, dropout=dropout
    )
    stack = Stack(width=width, depth=depth, block=block, groups=groups)
    return Model(embed=embed, stack=stack, head=POOLER if pooler else None, init="bert")


roberta = partial(bert, vocab=50265, offset=2, segments=1, eps=1e-5)  # 1907.11692
distilbert = partial(bert, segments=0, pooler=False)  # 1910.01108
albert = partial(bert, vocab=30000, inner=128, groups=1, act="gelu_tanh", dropout=0.0)  # 1909.11942
electra = partial(bert, inner=128, pooler=False)  # 2003.10555

PRESETS: dict[str, Callable[[], Model]] = {
    "bert-base": partial(bert, 768, 12, 12),
    "bert-large": partial(bert, 1024, 24, 16),
    "roberta-base": partial(roberta, 768, 12, 12),
    "roberta-large": partial(roberta, 1024, 24, 16),
    "distilbert": partial(distilbert, 768, 6, 12),
    "albert-base": partial(albert, 768, 12, 12),
    "albert-large": partial(albert, 1024, 24, 16),
    "albert-xlarge": partial(albert, 2048, 24, 16),
    "albert-xxlarge": partial(albert, 4096, 12, 64, feed=16384),
    "electra-small": partial(electra, 256, 12, 4, feed=1024),
    "bert-base-tiny": partial(bert, 128, 3, 4, vocab=512, length=128, dropout=0.0),
    "roberta-base-tiny": partial(roberta, 128, 3, 4, vocab=512, length=128, dropout=0.0),
    "distilbert-tiny": partial(distilbert, 128, 3, 4, vocab=512, length=128, dropout=0.0),
    "albert-base-tiny": partial(albert, 128, 4, 4, vocab=512, length=128, inner=32),
    "electra-small-tiny": partial(electra, 128, 3, 4, vocab=512, length=128, inner=32, dropout=0.0),
}
for larger, tiny in (("bert-large", "bert-base"), ("roberta-large", "roberta-base"), ("albert-large", "albert-base"),
                     ("albert-xlarge", "albert-base"), ("albert-xxlarge", "albert-base")):  # fmt: skip
    PRESETS[f"{larger}-tiny"] = PRESETS[f"{tiny}-tiny"]

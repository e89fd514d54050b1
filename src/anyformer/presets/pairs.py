"""Encoder-decoders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.feeds.mlp import MLP
from anyformer.heads.lm import LM
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross
from anyformer.norms.layer import LayerNorm
from anyformer.norms.rms import RMSNorm
from anyformer.positions.buckets import Buckets
from anyformer.positions.learned import Learned
from anyformer.positions.sinusoid import Sinusoid


def transformer(width: int, depth: int, heads: int, *, vocab: int = 37000, dropout: float = 0.1) -> Seq2Seq:
    """The original: post-norm, sinusoids, one table for both sides and the head (1706.03762).

    6 + 6 layers in base and big alike; 37,000 joint sub-words for English-German.
    """
    embed = Tokens(vocab=vocab, position=Sinusoid(), scale=True, dropout=dropout)
    block = Block(mixer=Attention(heads=heads, bias=False), feed=MLP(act="relu"), place="post", dropout=dropout)
    cross = block.replace(cross=Cross(heads=heads, bias=False))
    return Seq2Seq(
        encoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=block)),
        decoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=cross, causal=True)),
        head=LM(tied=True), share="table",
    )  # fmt: skip


def t5(
    width: int,
    depth: int,
    heads: int,
    *,
    size: int = 64,
    feed: int | None = None,
    vocab: int = 32128,
    dropout: float = 0.1,
) -> Seq2Seq:
    """Pre-norm RMSNorm, bucketed relative positions, no 1/sqrt(C), no biases (1910.10683, v1.0)."""
    attention = Attention(heads=heads, key_size=size, bias=False, scale="none", dropout=dropout)
    block = Block(mixer=attention, relative=Buckets(), feed=MLP(width=feed, act="relu", bias=False, dropout=dropout),
                  norm=RMSNorm(eps=1e-6), dropout=dropout)  # fmt: skip
    cross = block.replace(cross=Cross(heads=heads, key_size=size, bias=False, scale="none", dropout=dropout))
    embed = Tokens(vocab=vocab, dropout=dropout)
    return Seq2Seq(
        encoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=block)),
        decoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=cross, causal=True)),
        head=LM(tied=True, scale=width**-0.5), share="table", init="t5",
    )  # fmt: skip


def bart(
    width: int, depth: int, heads: int, *, vocab: int = 50265, length: int = 1024, dropout: float = 0.1
) -> Seq2Seq:
    """Post-norm, learned positions from row 2, a norm after the embedding, bare (1910.13461)."""
    embed = Tokens(vocab=vocab, position=Learned(length, offset=2), norm=LayerNorm(), dropout=dropout)
    block = Block(mixer=Attention(heads=heads), feed=MLP(act="gelu"), place="post", dropout=dropout)
    cross = block.replace(cross=Cross(heads=heads))
    return Seq2Seq(
        encoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=block)),
        decoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=cross, causal=True)),
        share="table", init="bert",
    )  # fmt: skip


PRESETS: dict[str, Callable[[], Seq2Seq]] = {
    "transformer-base": partial(transformer, 512, 6, 8),
    "transformer-big": partial(transformer, 1024, 6, 16, dropout=0.3),
    "t5-small": partial(t5, 512, 6, 8),
    "t5-base": partial(t5, 768, 12, 12),
    "bart-base": partial(bart, 768, 6, 12),
    "bart-large": partial(bart, 1024, 12, 16),
    "transformer-base-tiny": partial(transformer, 96, 2, 4, vocab=512, dropout=0.0),
    "t5-small-tiny": partial(t5, 96, 2, 4, size=24, vocab=512, dropout=0.0),
    "bart-base-tiny": partial(bart, 96, 2, 4, vocab=512, length=128, dropout=0.0),
}
for larger, tiny in (("transformer-big", "transformer-base"), ("t5-base", "t5-small"), ("bart-large", "bart-base")):
    PRESETS[f"{larger}-tiny"] = PRESETS[f"{tiny}-tiny"]

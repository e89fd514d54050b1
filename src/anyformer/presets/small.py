"""Models for data of one's own: small enough for a laptop, with what has proved good since the papers.

Pre-norm RMSNorm, rotary positions and no biases throughout; `mini` suits a CPU, `small` a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds.conv_stem import ConvStem
from anyformer.embeds.patches import Patches
from anyformer.embeds.tokens import Tokens
from anyformer.feeds.mlp import MLP
from anyformer.heads.lm import LM
from anyformer.heads.pooled import Pooled
from anyformer.heads.wide import WideAndDeep
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross
from anyformer.norms.rms import RMSNorm
from anyformer.positions.rope import Rope
from anyformer.slots import Network

VOCAB = 512  # replaced by the data's own


def block(heads: int, dropout: float) -> Block:
    """One block of all text models here."""
    return Block(
        mixer=Attention(heads=heads, bias=False, dropout=dropout), relative=Rope(),
        feed=MLP(act="gelu_tanh", bias=False), norm=RMSNorm(), dropout=dropout,
    )  # fmt: skip


def decoder(width: int, depth: int, heads: int, *, dropout: float = 0.0) -> Model:
    """A language model."""
    stack = Stack(width=width, depth=depth, causal=True, block=block(heads, dropout))
    return Model(embed=Tokens(vocab=VOCAB, dropout=dropout), stack=stack, head=LM(tied=True))


def encoder(width: int, depth: int, heads: int, *, dropout: float = 0.1) -> Model:
    """A reader of text, for classes, tags and numbers; of the whole the mean of all tokens tells, and the n-grams."""
    stack = Stack(width=width, depth=depth, block=block(heads, dropout))
    head = WideAndDeep(deep=Pooled(classes=2, pool="mean", dropout=dropout), pair=True, alone=0.5)
    return Model(embed=Tokens(vocab=VOCAB, dropout=dropout), stack=stack, head=head, init="xavier")


def translator(
    width: int, depth: int, heads: int, *, feed: int | None = None, dropout: float = 0.3, scale: float | None = None
) -> Seq2Seq:
    """Text into text, with one table of words for both sides; `scale` below 1 lets a small one start at chance."""
    plain = block(heads, dropout).replace(feed=MLP(width=feed, act="relu", dropout=dropout))
    crossing = plain.replace(cross=Cross(heads=heads, bias=False, dropout=dropout))
    embed = Tokens(vocab=VOCAB, scale=True, dropout=dropout)
    return Seq2Seq(
        encoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=plain)),
        decoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=crossing, causal=True)),
        head=LM(tied=True, scale=scale), share="table",
    )  # fmt: skip


def captioner(width: int, depth: int, heads: int, *, size: int = 32, patch: int = 4, dropout: float = 0.1) -> Seq2Seq:
    """An image, alone or beside a question, into text: patches are read, words are written."""
    looking = Block(mixer=Attention(heads=heads, dropout=dropout), feed=MLP(width=2 * width), dropout=dropout)
    writing = block(heads, dropout).replace(cross=Cross(heads=heads, bias=False, dropout=dropout))
    return Seq2Seq(
        encoder=Model(
            embed=Patches(size=size, patch=patch, cls=False), stack=Stack(width=width, depth=depth, block=looking)
        ),
        decoder=Model(
            embed=Tokens(vocab=VOCAB, scale=True, dropout=dropout),
            stack=Stack(width=width, depth=depth, block=writing, causal=True),
        ),
        head=LM(tied=True, scale=0.5),
    )  # fmt: skip


def seer(width: int, depth: int, heads: int, *, size: int = 32, patch: int = 4, dropout: float = 0.0) -> Model:
    """A ViT for small images, pooled by the mean."""
    inner = Block(mixer=Attention(heads=heads, dropout=dropout), feed=MLP(width=2 * width), dropout=dropout)
    return Model(embed=Patches(size=size, patch=patch), stack=Stack(width=width, depth=depth, block=inner),
                 head=Pooled(classes=10, pool="mean"), init="xavier")  # fmt: skip


def stem_seer(width: int, depth: int, heads: int, *, depths: tuple[int, ...], dropout: float = 0.0) -> Model:
    """A Transformer behind a stem of convolutions, for images of any size and few of them (2106.14881)."""
    inner = Block(mixer=Attention(heads=heads, dropout=dropout), feed=MLP(width=2 * width), dropout=dropout)
    stem = ConvStem(size=32, widths=(width // 4, width // 2, width), depths=depths)
    # Cells of a stem are much alike, and a head drawn as for tokens that differ would start far from chance.
    return Model(embed=stem, stack=Stack(width=width, depth=depth, block=inner),
                 head=Pooled(classes=10, pool="mean"), init="table")  # fmt: skip


PRESETS: dict[str, Callable[[], Network]] = {
    "decoder-mini": partial(decoder, 128, 4, 4),
    "decoder-small": partial(decoder, 384, 6, 6, dropout=0.2),
    "encoder-mini": partial(encoder, 128, 2, 4),
    "encoder-small": partial(encoder, 256, 4, 4, dropout=0.2),
    "captioner-mini": partial(captioner, 128, 2, 4),
    "captioner-small": partial(captioner, 256, 4, 4),
    "translator-mini": partial(translator, 128, 2, 4, dropout=0.1, scale=0.5),
    "translator-small": partial(translator, 256, 4, 4, feed=512),
    "vit-mini": partial(seer, 128, 4, 4),
    "vit-small": partial(seer, 256, 7, 4, dropout=0.1),
    "vitc-mini": partial(stem_seer, 128, 2, 4, depths=(0, 1, 1)),
    "vitc-small": partial(stem_seer, 256, 6, 4, depths=(1, 2, 2), dropout=0.1),
}
for name in list(PRESETS):  # they are their own small twins, or have one
    kind = name.rpartition("-")[0]
    PRESETS[f"{name}-tiny"] = PRESETS[f"{kind}-mini"]

"""Two kinds of sequence in one network: words and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.core.streams import Streams
from anyformer.core.towers import Towers
from anyformer.embeds.patches import Patches
from anyformer.embeds.tokens import Tokens
from anyformer.feeds.mlp import MLP
from anyformer.heads.pair import Pair
from anyformer.heads.pooled import Pooled
from anyformer.mixers.attention import Attention
from anyformer.mixers.co_attention import CoAttention
from anyformer.norms.layer import LayerNorm
from anyformer.norms.none import NoNorm
from anyformer.positions.learned import Learned
from anyformer.slots import Network


def vilbert(
    text: tuple[int, int], image: tuple[int, int], meetings: int, *, alone: int, shared: int, together: int,
    vocab: int = 30522, length: int = 512, size: int = 224, patch: int = 32, dropout: float = 0.1,
) -> Streams:  # fmt: skip
    """ViLBERT (1908.02265) from pixels: `alone` text layers first, then each time a meeting and a layer of both.

    `text` and `image` are width and heads of a stream; `shared` is the width of the meetings and of the two vectors
    that are multiplied, `together` their heads. The original's pictures are regions of a detector, these are patches.
    """
    norm = LayerNorm(eps=1e-12)

    def stream(width: int, heads: int, inner: int | None, alone: int) -> Stack:
        own = Block(
            mixer=Attention(heads=heads, dropout=dropout), feed=MLP(width=inner), norm=norm, place="post",
            dropout=dropout,
        )  # fmt: skip
        looking = own.replace(mixer=CoAttention(heads=together, key_size=shared // together, dropout=dropout))
        blocks = (*(own,) * alone, *(looking, own) * meetings)
        return Stack(width=width, depth=len(blocks), block=blocks)

    words = Tokens(vocab=vocab, position=Learned(length), segments=2, norm=norm, dropout=dropout)
    pixels = Patches(size=size, patch=patch, norm=norm, dropout=dropout)
    vector = Pooled(dense=shared, act="relu")
    return Streams(
        first=Model(embed=words, stack=stream(*text, None, alone), head=vector),
        second=Model(embed=pixels, stack=stream(*image, image[0], 0), head=vector),
        head=Pair(classes=2, features=("product",), dropout=dropout),
    )


def clip(
    text: tuple[int, int, int], image: tuple[int, int, int], shared: int, *, vocab: int = 49408, length: int = 77,
    size: int = 224, patch: int = 32, log_scale: float = math.log(1 / 0.07),
) -> Towers:  # fmt: skip
    """CLIP (2103.00020): width, depth and heads of the text tower and of the image tower, and the width they share."""
    norm = LayerNorm(eps=1e-5)

    def block(heads: int) -> Block:
        return Block(mixer=Attention(heads=heads), feed=MLP(act="quick_gelu"), norm=norm)

    words = Model(
        embed=Tokens(vocab=vocab, position=Learned(length)),
        stack=Stack(width=text[0], depth=text[1], block=block(text[2]), causal=True),
        head=Pooled(pool="token", dense=shared, bias=False), init="bert",
    )  # fmt: skip
    pictures = Model(
        embed=Patches(size=size, patch=patch, norm=norm, bias=False),
        stack=Stack(width=image[0], depth=image[1], block=block(image[2]), final=NoNorm()),
        head=Pooled(norm=norm, dense=shared, bias=False), init="bert",
    )  # fmt: skip
    return Towers(first=words, second=pictures, log_scale=log_scale)


PRESETS: dict[str, Callable[[], Network]] = {
    "vilbert-base": partial(vilbert, (768, 12), (1024, 8), 6, alone=6, shared=1024, together=8),
    "clip-b32": partial(clip, (512, 12, 8), (768, 12, 12), 512),
    "vilbert-base-tiny": partial(vilbert, (96, 4), (64, 4), 2, alone=1, shared=64, together=4, vocab=512, length=128,
                                 size=32, patch=4, dropout=0.0),
    "clip-b32-tiny": partial(clip, (96, 2, 4), (96, 2, 4), 64, vocab=512, size=32, patch=4),
}  # fmt: skip

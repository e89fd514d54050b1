"""Taggers of whole words: what a word looks like, its neighbours, and the whole sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.words import Words
from anyformer.heads.tokens import TokenHead
from anyformer.mixers.recurrent import Recurrent
from anyformer.slots import Network

VOCAB = 512  # replaced by the data's own


def tagger(width: int, depth: int, *, dropout: float = 0.3) -> Model:
    """Words with their letters, an LSTM in both directions, and a tag for every word."""
    block = Block(mixer=Recurrent("lstm", hidden=width // 2), feed=None, dropout=dropout)
    embed = Words(vocab=VOCAB, word_dropout=0.1, dropout=dropout)
    return Model(embed=embed, stack=Stack(width=width, depth=depth, block=block),
                 head=TokenHead(classes=9, dropout=dropout), init="xavier")  # fmt: skip


PRESETS: dict[str, Callable[[], Network]] = {
    "tagger-mini": partial(tagger, 128, 1),
    "tagger-small": partial(tagger, 256, 1),
    "tagger-mini-tiny": partial(tagger, 128, 1),
    "tagger-small-tiny": partial(tagger, 128, 1),
}

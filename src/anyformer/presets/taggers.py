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


def tagger(width: int, depth: int, *, affixes: int, letters: int, dropout: float = 0.3) -> Model:
    """Words with their letters, an LSTM in both directions, and a tag for every word."""
    block = Block(mixer=Recurrent("lstm", hidden=width // 2), feed=None, dropout=dropout)
    embed = Words(vocab=VOCAB, affixes=affixes, letters=letters, word_dropout=0.1, dropout=dropout)
    return Model(embed=embed, stack=Stack(width=width, depth=depth, block=block),
                 head=TokenHead(classes=9, dropout=dropout), init="xavier")  # fmt: skip


PRESETS: dict[str, Callable[[], Network]] = {
    "tagger-mini": partial(tagger, 128, 1, affixes=2**13, letters=32),
    "tagger-small": partial(tagger, 256, 1, affixes=2**14, letters=64),
    "tagger-mini-tiny": partial(tagger, 64, 1, affixes=2**10, letters=16),
    "tagger-small-tiny": partial(tagger, 64, 1, affixes=2**10, letters=16),
}

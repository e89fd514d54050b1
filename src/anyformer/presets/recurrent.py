"""Recurrent and convolutional models of text, for data of one's own.

The shapes are those of the lectures (an LSTM language model, a tagger that reads both ways, Bahdanau's translator, a
CNN that takes the maximum over the text); norms and residual sums around each layer are of today, and let them learn
without care for the starting values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model, Seq2Seq
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.heads.lm import LM
from anyformer.heads.pooled import Pooled
from anyformer.heads.tokens import TokenHead
from anyformer.mixers.attending_recurrent import AttendingRecurrent
from anyformer.mixers.convolution import Convolution
from anyformer.mixers.recurrent import Recurrent
from anyformer.slots import Mixer, Network

VOCAB = 512  # replaced by the data's own


def layer(mixer: Mixer, dropout: float) -> Block:
    """One layer that is nothing but its mixer: the gates of a cell are feed enough."""
    return Block(mixer=mixer, feed=None, dropout=dropout)


def language(width: int, depth: int, *, dropout: float) -> Model:
    """An LSTM language model with a tied head."""
    stack = Stack(width=width, depth=depth, causal=True, block=layer(Recurrent("lstm"), dropout))
    return Model(embed=Tokens(vocab=VOCAB, dropout=dropout), stack=stack, head=LM(tied=True))


def tagger(width: int, depth: int, *, dropout: float) -> Model:
    """A GRU in both directions, half the width each, and a tag for every word."""
    stack = Stack(width=width, depth=depth, block=layer(Recurrent("gru", hidden=width // 2), dropout))
    head = TokenHead(classes=9, dropout=dropout)
    return Model(embed=Tokens(vocab=VOCAB, dropout=dropout), stack=stack, head=head)


def translator(width: int, depth: int, *, dropout: float) -> Seq2Seq:
    """Additive attention over a GRU in both directions (1409.0473), one table of words for both sides."""
    reader = layer(Recurrent("gru", hidden=width // 2), dropout)
    writer = layer(AttendingRecurrent("gru"), dropout)
    embed = Tokens(vocab=VOCAB, dropout=dropout)
    return Seq2Seq(
        encoder=Model(embed=embed, stack=Stack(width=width, depth=depth, block=reader)),
        decoder=Model(embed=embed, stack=Stack(width=width, depth=1, block=writer, causal=True)),
        head=LM(tied=True), share="table",
    )  # fmt: skip


def classifier(width: int, depth: int, *, dropout: float) -> Model:
    """Gated convolutions over five words (1705.03122) and the maximum over the text (1408.5882)."""
    stack = Stack(width=width, depth=depth, block=layer(Convolution(5, gated=True), dropout))
    head = Pooled(classes=2, pool="max", dropout=dropout)
    return Model(embed=Tokens(vocab=VOCAB, dropout=dropout), stack=stack, head=head)


PRESETS: dict[str, Callable[[], Network]] = {
    "lstm-lm": partial(language, 256, 2, dropout=0.2),
    "gru-tagger": partial(tagger, 256, 2, dropout=0.3),
    "bahdanau-seq2seq": partial(translator, 256, 2, dropout=0.2),
    "cnn-classifier": partial(classifier, 128, 2, dropout=0.3),
    "lstm-lm-tiny": partial(language, 128, 2, dropout=0.0),
    "gru-tagger-tiny": partial(tagger, 128, 1, dropout=0.0),
    "bahdanau-seq2seq-tiny": partial(translator, 128, 1, dropout=0.0),
    "cnn-classifier-tiny": partial(classifier, 64, 2, dropout=0.0),
}

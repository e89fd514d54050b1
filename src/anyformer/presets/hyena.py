"""Language models without attention: Hyena in a GPT's place (2302.10866)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.tokens import Tokens
from anyformer.feeds.mlp import MLP
from anyformer.heads.lm import LM
from anyformer.mixers.hyena import Hyena
from anyformer.slots import Network


def hyena(width: int, depth: int, feed: int, mixer: Hyena, *, vocab: int = 50257) -> Model:
    """Pre-norm, no positions beside the filters' own lags, tied head."""
    block = Block(mixer=mixer, feed=MLP(width=feed, act="gelu_tanh"))
    stack = Stack(width=width, depth=depth, causal=True, block=block)
    return Model(embed=Tokens(vocab=vocab), stack=stack, head=LM(tied=True))


PRESETS: dict[str, Callable[[], Network]] = {
    "hyena-small": partial(hyena, 864, 18, 1728, Hyena(longest=2048, frequency=14.0)),  # the paper's 153M
    "hyena-small-tiny": partial(hyena, 128, 4, 256, Hyena(longest=256, filter_width=32), vocab=512),
}

"""Models for tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.ensemble import Ensemble
from anyformer.core.feed_stack import FeedStack
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.numbers import PiecewiseCurve
from anyformer.embeds.table import Table
from anyformer.feeds.mlp import MLP
from anyformer.heads.regress import Regress
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.norms.none import NoNorm


def ft_transformer(
    width: int = 192,
    depth: int = 3,
    heads: int = 8,
    *,
    numbers: int = 8,
    categories: tuple[int, ...] | None = None,
    outputs: int = 1,
) -> Model:
    """The defaults of the reference implementation, for California housing's 8 numbers (2106.11959).

    Its first block has no norm before the attention, and the head reads the class token after a norm and a ReLU.
    """
    block = Block(
        mixer=Attention(heads=heads, dropout=0.2),
        feed=MLP(width=int(width * 4 / 3), act="relu", gated=True, dropout=0.1),
    )
    blocks = (block.replace(mixer_norm=NoNorm()), *[block] * (depth - 1))
    return Model(embed=Table(numbers=numbers, categories=categories),
                 stack=Stack(width=width, depth=depth, block=blocks, final=NoNorm()),
                 head=Regress(outputs=outputs, norm=LayerNorm(), act="relu"), init="table")  # fmt: skip


def table_mlp(width: int, depth: int, members: int, *, joined: int, bins: int, dropout: float) -> Model:
    """One token a row and no mixing: an ensemble of residual MLPs on broken lines of the numbers (2410.24210)."""
    return Model(
        embed=Table(numbers=8, cls=False, joined=joined, curve=PiecewiseCurve(bins=bins)),
        stack=FeedStack(width=width, depth=depth, feed=MLP(width=width, act="relu", dropout=dropout)),
        head=Regress(act="relu", dropout=dropout), init="table", ensemble=Ensemble(members),
    )  # fmt: skip


PRESETS: dict[str, Callable[[], Model]] = {
    "ft-transformer": ft_transformer,
    "ft-transformer-tiny": partial(ft_transformer, 64, 2, 4),
    "table-mini": partial(table_mlp, 192, 2, 8, joined=12, bins=32, dropout=0.2),
    "table-mini-tiny": partial(table_mlp, 64, 1, 2, joined=8, bins=16, dropout=0.1),
    "table-small": partial(table_mlp, 384, 2, 24, joined=16, bins=48, dropout=0.2),
    "table-small-tiny": partial(table_mlp, 64, 1, 2, joined=8, bins=16, dropout=0.1),
}

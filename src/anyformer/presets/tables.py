"""Models for tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.ensemble import Ensemble
from anyformer.core.feed_stack import FeedStack
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.numbers import PeriodicCurve, PiecewiseCurve
from anyformer.embeds.table import Table
from anyformer.feeds.mlp import MLP
from anyformer.heads.regress import Regress
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.norms.none import NoNorm
from anyformer.slots import NumberCurve


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


def table_mlp(width: int, depth: int, members: int, *, joined: int, curve: NumberCurve) -> Model:
    """One token a row and no mixing: an ensemble of residual MLPs on curves of the numbers (2410.24210)."""
    return Model(
        embed=Table(numbers=8, cls=False, joined=joined, curve=curve),
        stack=FeedStack(width=width, depth=depth, feed=MLP(width=width, act="relu", dropout=0.15)),
        head=Regress(act="relu", dropout=0.15), init="table", ensemble=Ensemble(members),
    )  # fmt: skip


# Broken lines for few rows; sines tell finer differences apart, which takes thousands of rows to learn (2203.05556).
BROKEN, WAVES = PiecewiseCurve(bins=64), PeriodicCurve(frequencies=24, sigma=1.0)
TINY = partial(table_mlp, 64, 1, 2, joined=8, curve=PiecewiseCurve(bins=16))
PRESETS: dict[str, Callable[[], Model]] = {
    "ft-transformer": ft_transformer,
    "ft-transformer-tiny": partial(ft_transformer, 64, 2, 4),
    "table-mini": partial(table_mlp, 128, 2, 8, joined=12, curve=BROKEN),
    "table-small": partial(table_mlp, 256, 2, 16, joined=16, curve=BROKEN),
    "table-periodic-mini": partial(table_mlp, 128, 2, 8, joined=12, curve=WAVES),
    "table-periodic-small": partial(table_mlp, 256, 2, 16, joined=16, curve=WAVES),
    "table-mini-tiny": TINY,
    "table-small-tiny": TINY,
    "table-periodic-mini-tiny": TINY,
    "table-periodic-small-tiny": TINY,
}

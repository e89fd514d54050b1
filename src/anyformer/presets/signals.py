"""Sound and time series."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from anyformer.core.block import Block
from anyformer.core.model import Model
from anyformer.core.stack import Stack
from anyformer.embeds.frames import Frames
from anyformer.embeds.series import Series
from anyformer.feeds.mlp import MLP
from anyformer.heads.forecast import Forecast
from anyformer.heads.pooled import Pooled
from anyformer.mixers.attention import Attention
from anyformer.norms.layer import LayerNorm
from anyformer.positions.learned import Learned


def ast(width: int, depth: int, heads: int, *, sound: Frames, classes: int = 527) -> Model:
    """DeiT over overlapping patches of a log-mel spectrogram; the answer is read from the mean of its two leading
    tokens (2104.01778).
    """
    block = Block(mixer=Attention(heads=heads), norm=LayerNorm(eps=1e-12))
    head = Pooled(classes=classes, pool="lead", norm=LayerNorm(eps=1e-12))
    return Model(embed=sound, stack=Stack(width=width, depth=depth, block=block), head=head, init="bert")


def patchtst(
    width: int, heads: int, feed: int, *, length: int, horizon: int = 96, depth: int = 3,
    patch: int = 16, stride: int = 8, dropout: float = 0.2,
) -> Model:  # fmt: skip
    """An encoder over each channel's patches, one linear layer on all of them side by side (2211.14730).

    The paper normalises by batch and adds each layer's scores to the next one's; here are layer norms and plain
    attention, as in most later implementations.
    """
    embed = Series(length=length, patch=patch, stride=stride, dropout=dropout)
    embed = embed.replace(position=Learned(embed.patches))
    block = Block(mixer=Attention(heads=heads), feed=MLP(width=feed, dropout=dropout), place="post", dropout=dropout)
    return Model(embed=embed, stack=Stack(width=width, depth=depth, block=block),
                 head=Forecast(horizon=horizon, patches=embed.patches), init="bert")  # fmt: skip


def forecaster(width: int, heads: int, feed: int, *, length: int, horizon: int = 96, depth: int = 3,
               dropout: float = 0.2) -> Model:  # fmt: skip
    """A PatchTST that learns what a linear map of the window leaves (2205.13504)."""
    made = patchtst(width, heads, feed, length=length, horizon=horizon, depth=depth, dropout=dropout)
    assert isinstance(made.head, Forecast)
    return made.replace(head=made.head.replace(window=length, dropout=dropout))


SMALL_SOUND = Frames(sample_rate=8000, frames=64, mels=32, patch=8, stride=8, distill=True)
# One token for 40 ms: the whole height of the spectrum, as keyword models take it (2104.00769).
COLUMNS = Frames(sample_rate=16000, frames=100, mels=128, patch=(128, 4), stride=(128, 4))

PRESETS: dict[str, Callable[[], Model]] = {
    "ast-tiny": partial(ast, 96, 3, 4, sound=SMALL_SOUND, classes=10),
    "ast-small": partial(ast, 384, 12, 6, sound=Frames(sample_rate=16000, distill=True)),
    "ast-base": partial(ast, 768, 12, 12, sound=Frames(sample_rate=16000, distill=True)),
    "sound-mini": partial(ast, 128, 4, 4, sound=COLUMNS, classes=10),
    "sound-small": partial(ast, 256, 6, 4, sound=COLUMNS, classes=10),
    "forecaster-small": partial(forecaster, 16, 4, 128, length=336, dropout=0.3),
    "forecaster-tiny": partial(forecaster, 16, 4, 32, length=64, horizon=8, depth=2, dropout=0.0),
    "patchtst": partial(patchtst, 128, 16, 256, length=512),
    "patchtst-small": partial(patchtst, 16, 4, 128, length=336, dropout=0.3),
    "patchtst-tiny": partial(patchtst, 16, 4, 32, length=64, horizon=8, depth=2, dropout=0.0),
}
for size in ("ast-small", "ast-base", "sound-mini", "sound-small"):
    PRESETS[f"{size}-tiny"] = PRESETS["ast-tiny"]
PRESETS["forecaster-small-tiny"] = PRESETS["forecaster-tiny"]
PRESETS["patchtst-small-tiny"] = PRESETS["patchtst-tiny"]

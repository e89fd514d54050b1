"""The parts of a network that time series dictate."""

from __future__ import annotations

from anyformer.core.model import Model
from anyformer.data.sizes import Sizes
from anyformer.embeds import Series
from anyformer.heads import Forecast
from anyformer.positions import Learned


def forecaster(spec: Model, sizes: Sizes) -> Model:
    """The preset for this look-back, these channels and this horizon; short windows have short patches."""
    embed = spec.embed
    assert isinstance(embed, Series)
    length = sizes.length or embed.length
    patch = embed.patch if embed.patch <= length // 2 else max(1, length // 4)
    stride = embed.stride if patch == embed.patch else max(1, patch // 2)
    embed = embed.replace(
        length=length, channels=embed.channels and sizes.numbers, patch=patch, stride=stride, position=None
    )
    if isinstance(spec.embed.position, Learned):  # type: ignore[attr-defined]
        embed = embed.replace(position=Learned(embed.patches))
    own = spec.head if isinstance(spec.head, Forecast) else Forecast(horizon=1, patches=1)
    return spec.replace(embed=embed, head=own.replace(horizon=sizes.outputs, patches=embed.patches))

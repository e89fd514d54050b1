"""The parts of a network that sound and time series dictate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyformer.core.model import Model
from anyformer.embeds import Frames, Series
from anyformer.embeds.mel import bands
from anyformer.heads import Forecast
from anyformer.positions import Grid, Learned

if TYPE_CHECKING:
    from anyformer.training.setup.network import Sizes


def sounds(embed: Frames, sizes: Sizes) -> Frames:
    """Spectra of these clips; a patch as high as the preset's spectrum is as high as the data's."""
    mels, (high, wide), (down, along) = bands(sizes.sample_rate), embed.cell, embed.apart
    whole = high == embed.mels
    reach, step = round(embed.window * sizes.sample_rate), max(1, round(embed.hop * sizes.sample_rate))
    frames = 1 + max(0, -((reach - sizes.samples) // step))  # rounded up: the last samples are heard
    mean, std = sizes.loudness or (embed.mean, embed.std)
    return embed.replace(
        sample_rate=sizes.sample_rate, mels=mels, frames=max(wide, frames), mean=mean, std=std,
        patch=(mels if whole else min(high, mels), wide), stride=(mels if whole else min(down, mels), along),
        position=Grid() if isinstance(embed.position, Grid) else embed.position,
    )  # fmt: skip


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

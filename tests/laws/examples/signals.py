"""Sound, time series, and what a forecast is read from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.embeds.frames import Frames
from anyformer.embeds.series import Series
from anyformer.heads.forecast import Forecast
from anyformer.norms.layer import LayerNorm

FRAMES = Frames(sample_rate=100, frames=12, mels=8, window=0.16, hop=0.04, patch=4, stride=3)

EXAMPLES = {
    Frames: {
        "frames": FRAMES,
        "frames-led": FRAMES.replace(distill=True, stride=4, norm=LayerNorm()),
        "frames-bare": FRAMES.replace(cls=False, position=None, patch=(8, 2), stride=(8, 2)),
    },
    Series: {
        "series": Series(length=10, patch=4, stride=3, position=None),
        "series-together": Series(length=10, channels=2, patch=4, stride=2, repeat=False, norm=LayerNorm(),
                                  position=None),
        "series-raw": Series(length=12, patch=3, stride=3, scaled=False, position=None),
    },
    Forecast: {"forecast": Forecast(horizon=3, patches=24)},
}  # fmt: skip
ALIKE = {"frames-led", "frames-bare", "series-together", "series-raw"}


def waves(embed: Frames, batch: int, length: int, seed: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Tones and noise, each clip louder or softer than the others: clips of noise alone all sound alike."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch, embed.samples, generator=generator, dtype=torch.float64)
    pitch, loudness = torch.rand(2, batch, 1, generator=generator, dtype=torch.float64)
    tone = (torch.pi * pitch * torch.arange(embed.samples)).sin()
    given: Tensor = 10 ** (2 * loudness - 2) * (tone + 0.2 * noise)
    return (given.to(dtype),)


def windows(embed: Series, batch: int, length: int, seed: int, dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, embed.length, embed.channels or 1)
    given: Tensor = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return (given,)


INPUTS = {Frames: waves, Series: windows}


def no_rows(parts: dict[str, Any]) -> bool:
    """The channels of a series come one after the other: its layout knows no grid."""
    embed, asks = parts["embed"].replace(position=None), parts["position"].over(1, 1, 0) != parts["position"]
    return asks and embed.build(4).layout(*windows(embed, 1, 0, 0, torch.float32)).grid is None


REASONS = {r"a series has no rows and columns for \w+": no_rows}

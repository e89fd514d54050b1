"""Small stems of convolutions."""

from __future__ import annotations

from typing import Any

import torch

from anyformer.embeds.conv_stem import ConvStem

EXAMPLES = {
    ConvStem: {
        "conv-stem": ConvStem(size=8, widths=(4, 8), depths=(0, 1), channels=2),
        "conv-stem-wide": ConvStem(size=(8, 16), widths=(16,), depths=(1,), stride=4, position=None),
    },
}


def pixels(embed: ConvStem, batch: int, length: int, seed: int, dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, embed.channels, *embed.pixels)
    return (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype),)


INPUTS = {ConvStem: pixels}

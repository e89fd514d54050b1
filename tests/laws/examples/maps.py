"""Maps of a small ResNet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.embeds.maps import Maps
from anyformer.nets.resnet import ResNet
from anyformer.positions.grid import Grid
from anyformer.positions.sinusoid_grid import SinusoidGrid

NET = ResNet(depths=(1, 1), width=4, stem="small", colours=2)

EXAMPLES = {
    Maps: {
        "maps": Maps(backbone=NET, size=8, position=Grid()),
        "maps-added": Maps(backbone=NET, size=8, cls=True, position=SinusoidGrid(), every_layer=True),
        "maps-led": Maps(backbone=NET, size=(8, 12), cls=True, frozen=True),
    },
}
ALIKE = {"maps-led"}


def pixels(embed: Maps, batch: int, length: int, seed: int, dtype: torch.dtype) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, embed.backbone.inputs, *embed.pixels)
    given: Tensor = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return (given,)


INPUTS = {Maps: pixels}

"""Self-attention between all positions of a feature map (1805.08318), gated so that it starts as the identity."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.core.attend import Scores, attend, weights_of
from anyformer.core.own_init import Starting, constant
from anyformer.nets.spectral import SpectralConv

SCORES = Scores(scale=1.0)  # the paper does not scale


class MapAttention(Starting):
    """x + gamma * out(softmax(query(x) key(x)') value(x)), every part a 1x1 convolution under spectral normalisation.

    Queries and keys have C/8 channels, values C/2. `gamma` starts at 0: initially the map is unchanged, bit-exactly.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow, half = max(1, channels // 8), max(1, channels // 2)
        self.query = SpectralConv(channels, narrow, 1, bias=False)
        self.key = SpectralConv(channels, narrow, 1, bias=False)
        self.value = SpectralConv(channels, half, 1, bias=False)
        self.out = SpectralConv(half, channels, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))
        self.starts["gamma"] = constant(0)

    def forward(self, x: Tensor) -> Tensor:
        """(B,C,H,W) to the same."""
        q, k, v = (places(part(x)) for part in (self.query, self.key, self.value))
        seen = attend(q, k, v, SCORES)  # (B,1,HW,C/2)
        return x + self.gamma * self.out(seen[:, 0].mT.unflatten(2, x.shape[2:]))

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights between positions of (B,C,H,W): (B, HW, HW), rows sum to 1."""
        return weights_of(places(self.query(x)), places(self.key(x)), SCORES)[:, 0]


def places(maps: Tensor) -> Tensor:
    """(B,C,H,W) as one head over places, row by row: (B,1,HW,C)."""
    return maps.flatten(2).mT[:, None]

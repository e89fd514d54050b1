"""Sinusoidal absolute positions (1706.03762, 3.5): unlimited length, no parameters."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.errors import UserError
from anyformer.slots import Position


class Sinusoid(Position):
    """PE(pos, 2i) = sin(pos / base^(2i/d)), PE(pos, 2i+1) = cos of the same; d is the model width.

    `layout="half"` puts all sines first, then all cosines, as Marian and fairseq do.
    """

    about: ClassVar[About | None] = About("x_t + (sin(t w_i), cos(t w_i)), w_i = 10000^(-2i/D)", "1706.03762", "T D")

    base: float = 10000.0
    """Base of the wavelengths."""
    layout: Literal["interleaved", "half"] = "interleaved"
    """Sines and cosines alternating, or all sines first."""

    def check(self) -> None:
        if self.base <= 1:
            raise UserError(f"base {self.base} is not above 1", where="Sinusoid", fix="use 10000")

    def build(self, width: int) -> nn.Module:
        return SinusoidModule(self, width)


class SinusoidModule(nn.Module):
    """Computed from the given positions: a stored table would be rounded by a cast to bf16.

    Angles are float64 if the device supports it: in float32, position 1000 would be wrong by 6e-5.
    """

    def __init__(self, spec: Sinusoid, width: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width

    def forward(self, context: Context, dtype: torch.dtype) -> Tensor:
        exact = torch.float32 if context.positions.device.type == "mps" else torch.float64
        return sinusoid(context.positions, self.width, exact, self.spec.base, self.spec.layout).to(dtype)


def sinusoid(
    positions: Tensor,
    width: int,
    exact: torch.dtype = torch.float32,
    base: float = 10000.0,
    layout: str = "interleaved",
) -> Tensor:
    """The table's rows for any positions (B,T): (B,T,D); an odd width has one cosine less."""
    powers = torch.arange(0, width, 2, dtype=torch.float64, device=positions.device) / width
    angles = positions.to(exact)[..., None] * (base**-powers).to(exact)  # (B,T,D/2)
    if layout == "half":
        return torch.cat([angles.sin(), angles.cos()[..., : width // 2]], -1)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[..., :width]  # (B,T,D)

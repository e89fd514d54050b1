"""The pixels of every patch, for masked image modelling."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, constant, normal
from anyformer.errors import check_range
from anyformer.slots import Head, HeadOutput

QUIET = 0.1  # deviation of what is answered at the start, of tokens that have been normalised


class PixelHead(Head):
    """`values` numbers per patch, (B,N,values): its pixels channel by channel.

    Leading tokens (a class token) are left out; without a grid, every token has an output.
    """

    about: ClassVar[About | None] = About("pixels_n = W x_n + b", "2111.09886", "N D values")

    values: int
    """Numbers of a patch: channels x height x width."""

    def check(self) -> None:
        check_range("PixelHead", "values", self.values, 1, fix="give channels x patch x patch")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return PixelHeadModule(self, width)


class PixelLayer(LinearLayer, Starting):
    """A linear layer that answers nearly 0, the mean of normalised pixels, until it has learned: a loss of 1.

    Drawn like the other layers, it would add the variance of its own noise to the loss: twice that under xavier.
    """

    def __init__(self, width: int, values: int) -> None:
        super().__init__(width, values)
        self.starts = {"weight": normal(QUIET * width**-0.5), "bias": constant(0.0)}


class PixelHeadModule(nn.Module):
    def __init__(self, spec: PixelHead, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = PixelLayer(width, spec.values)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        count = hidden.shape[1] if context.grid is None else context.grid[0] * context.grid[1]
        return HeadOutput(logits=self.out(hidden[:, -count:]))  # (B,N,values)

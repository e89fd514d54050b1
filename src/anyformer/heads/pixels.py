"""The pixels of every patch, for models that rebuild hidden ones."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.errors import check_range
from anyformer.slots import Head, HeadOutput


class PixelHead(Head):
    """`values` numbers a patch, (B,N,values): its pixels channel by channel.

    Tokens before a grid of patches (a class token) are left out; where there is no grid, every token has its numbers.
    """

    about: ClassVar[About | None] = About("pixels_n = W x_n + b", "2111.09886", "N D values")

    values: int
    """Numbers of a patch: channels x height x width."""

    def check(self) -> None:
        check_range("PixelHead", "values", self.values, 1, fix="give channels x patch x patch")

    def build(self, width: int, vocabulary: tuple[int, int | None] | None) -> nn.Module:
        return PixelHeadModule(self, width)


class PixelHeadModule(nn.Module):
    def __init__(self, spec: PixelHead, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.out = LinearLayer(width, spec.values)

    def forward(self, hidden: Tensor, context: Context, table: Tensor | None) -> HeadOutput:
        count = hidden.shape[1] if context.grid is None else context.grid[0] * context.grid[1]
        return HeadOutput(logits=self.out(hidden[:, -count:]))  # (B,N,values)

"""Feature maps into tokens: each cell of a backbone's maps (B,C,H,W) becomes a token."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import LinearLayer
from anyformer.core.state import State
from anyformer.errors import UserError, check_fraction
from anyformer.slots import Backbone, Embed, Norm, Position


class Maps(Embed):
    """Cells of `backbone`'s feature maps of an image (H, W) = `size`, projected to the model's width.

    `project=False` omits the projection if the backbone's channels equal the width. `cls` puts a learned class token
    first. `frozen` freezes the backbone. `every_layer` adds positions to queries and keys in every layer instead of to
    the tokens once (DETR). A mask over pixels (B, H, W) becomes one over cells, by nearest-neighbour sampling.
    """

    about: ClassVar[About | None] = About("x_n = W backbone(pixels)[:, row n, column n] + P[n]", "2005.12872", "T C D")

    gridded: ClassVar[bool] = True
    backbone: Backbone
    """The convolutional network whose maps are read."""
    size: int | tuple[int, int]
    """Height and width of the images."""
    project: bool = True
    """Whether the backbone's channels are projected to the width."""
    cls: bool = False
    """Whether a learned class token comes first."""
    position: Position | None = None
    """Absolute positions added to the tokens; none if not given."""
    norm: Norm | None = None
    """Norm of the tokens that come out; none if not given."""
    every_layer: bool = False
    """Add positions to queries and keys in every layer (DETR) instead of to the tokens once."""
    frozen: bool = False
    """Whether the backbone is frozen."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        if min(self.pixels) < 1:
            raise UserError(f"size {self.size} is below 1", where="Maps", fix="use 224")
        check_fraction("Maps", "dropout", self.dropout, fix="use 0.1")
        if self.every_layer and self.position is None:
            raise UserError("there is no position to add in every layer", where="Maps.every_layer",
                            fix="use position=SinusoidGrid()")  # fmt: skip

    @property
    def pixels(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def has_layer_positions(self) -> bool:
        return self.every_layer

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells at the size trained on."""
        return cells(self.pixels, self.backbone.stride)

    def build(self, width: int) -> nn.Module:
        if not self.project and self.backbone.channels != width:
            raise UserError(f"maps of {self.backbone.channels} channels meet a model {width} wide",
                            where="Maps.project", fix="use project=True")  # fmt: skip
        return MapsModule(self, width)


def cells(pixels: tuple[int, int], stride: int) -> tuple[int, int]:
    """Rows and columns of maps, rounded up as padded convolutions do."""
    return -(-pixels[0] // stride), -(-pixels[1] // stride)


class MapsModule(nn.Module):
    def __init__(self, spec: Maps, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = spec.backbone.build()
        if spec.frozen:
            self.backbone.requires_grad_(False)
        self.project = LinearLayer(spec.backbone.channels, width) if spec.project else None
        self.lead = nn.Parameter(torch.zeros(1, width)) if spec.cls else None
        position = spec.position
        self.position = None if position is None else position.over(*spec.grid, int(spec.cls)).build(width)
        self.norm = None if spec.norm is None else spec.norm.build(width)

    def layout(
        self, pixels: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of images (B, channels, H, W); `mask` is over tokens or pixels."""
        inputs = self.spec.backbone.inputs
        if not isinstance(pixels, Tensor) or pixels.dim() != 4 or pixels.shape[1] != inputs:
            shape = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
            raise UserError(f"pixels are {shape}", fix=f"expected a tensor (B, {inputs}, H, W)")
        if not pixels.is_floating_point():
            raise UserError(f"pixels have type {pixels.dtype}", fix="expected floating point")
        grid = cells((pixels.shape[2], pixels.shape[3]), self.spec.backbone.stride)
        length = int(self.spec.cls) + grid[0] * grid[1]
        limit = None if self.spec.position is None else self.spec.position.limit
        if limit is not None and length > limit:
            raise UserError(f"{length} tokens do not fit {limit} positions", fix="use a smaller image or Grid()")
        mask = over_cells(mask, pixels, grid, int(self.spec.cls))
        context = lay_out(pixels.shape[0], length, pixels.device, mask=mask, positions=positions, documents=documents,
                          segments=segments, grid=grid, state=state)  # fmt: skip
        if self.spec.every_layer and self.position is not None:
            return replace(context, added=self.position(context, self.dtype))
        return context

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its tokens."""
        return next(self.backbone.parameters()).dtype if self.project is None else self.project.weight.dtype

    def forward(self, pixels: Tensor, *, context: Context) -> Tensor:
        """Images (B, channels, H, W) to (B, T, D), the class token first, cells row by row."""
        maps = self.backbone(pixels.to(next(self.backbone.parameters()).dtype))  # (B,C,H,W)
        x = maps.flatten(2).mT  # (B,HW,C)
        x = x if self.project is None else self.project(x)
        if self.lead is not None:
            x = torch.cat([self.lead.expand(x.shape[0], -1, -1), x], 1)
        if self.position is not None and not self.spec.every_layer:
            x = x + self.position(context, x.dtype).to(x.dtype)
        x = x if self.norm is None else self.norm(x)
        return F.dropout(x, self.spec.dropout, self.training)


def over_cells(mask: Mask | None, pixels: Tensor, grid: tuple[int, int], leading: int) -> Mask | None:
    """Turn masks over pixels (B, H, W) into padding masks over tokens (B, T), as DETR does.

    An attention mask of the same shape can be distinguished by a fourth axis: (B, 1, T, S).
    """
    if isinstance(mask, tuple):
        return tuple(over_cells(part, pixels, grid, leading) for part in mask)  # type: ignore[misc]
    shape = (pixels.shape[0], *pixels.shape[2:])
    if not isinstance(mask, Tensor) or mask.shape != shape or mask.is_floating_point():
        return mask
    cells = F.interpolate((mask != 0)[None].float(), size=grid)[0].flatten(1) != 0  # (B,N), nearest
    return torch.cat([cells.new_ones(len(cells), leading), cells], 1)

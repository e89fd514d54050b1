"""Images into tokens by a convolutional stem: small images are then learned in fewer epochs."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import LinearLayer
from anyformer.core.own_init import Starting, constant
from anyformer.core.state import State
from anyformer.embeds.maps import cells
from anyformer.errors import UserError, check_fraction, check_range
from anyformer.positions.grid import Grid
from anyformer.slots import Embed, Position
from anyformer.spec import field

MOST_CELLS = 12  # most tokens per side, for images of any size
MOST_STRIDE = 4  # of the first convolution; larger images get more stages
GROUP = 16  # channels per group of the group norm


class ConvStem(Embed):
    """Stages of 3x3 convolutions over images (H, W) = `size`; each cell of the last feature maps becomes a token.

    A stage is one convolution to `widths` channels, which halves the maps (that of the first stage divides by
    `stride`), then `depths` residual blocks of two. Norms are group norms, independent of the batch. They remove the
    brightness of an image, so each cell's mean colour is appended to its channels.

    >>> ConvStem(size=28).grid, ConvStem(size=32).for_images(224, 3).widths
    ((7, 7), (32, 32, 64, 128))
    """

    about: ClassVar[About | None] = About(
        "x_n = W [stages(pixels), mean of pixels][:, cell n] + P[n], a stage of relu(norm(conv3x3))", "2106.14881",
        "sum over stages of HW 9 C^2",
    )  # fmt: skip

    gridded: ClassVar[bool] = True
    size: int | tuple[int, int]
    """Height and width of the images."""
    widths: tuple[int, ...] = (32, 64, 128)
    """Channels of each stage."""
    depths: tuple[int, ...] = (0, 1, 1)
    """Residual blocks of each stage."""
    stride: int = 1
    """Stride of the first convolution, in pixels."""
    channels: int = 3
    """Colour channels of the images."""
    position: Position | None = field(default_factory=Grid)
    """Absolute positions added to the tokens, or null for none."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        if not self.widths or min(self.widths) < 1 or len(self.depths) != len(self.widths) or min(self.depths) < 0:
            raise UserError(f"widths {self.widths} and depths {self.depths} are not stages", where="ConvStem",
                            fix="give one width and one depth a stage")  # fmt: skip
        check_range("ConvStem", "stride", self.stride, 1, fix="use 1")
        check_range("ConvStem", "channels", self.channels, 1, fix="use 3")
        if min(self.pixels) < 1:
            raise UserError(f"size {self.size} is below 1", where="ConvStem", fix="use 32")
        check_fraction("ConvStem", "dropout", self.dropout, fix="use 0.1")
        tokens, limit = self.grid[0] * self.grid[1], None if self.position is None else self.position.limit
        if limit is not None and limit < tokens:
            raise UserError(f"{tokens} tokens do not fit {limit} positions", where="ConvStem", fix="use Grid()")

    @property
    def pixels(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def cell(self) -> int:
        """Pixels per side of one token."""
        return int(self.stride * 2 ** (len(self.widths) - 1))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens at the size trained on."""
        return cells(self.pixels, self.cell)

    def for_images(self, size: int | tuple[int, int], channels: int) -> ConvStem:
        """The same stem for images of another size, with a grid of at most 12 x 12 tokens.

        Small images skip the first stages; for large ones the first convolution has a larger stride, and beyond that
        the
        first stage is repeated.
        """
        side = size if isinstance(size, int) else max(size)
        halvings = 0
        while -(-side // 2**halvings) > MOST_CELLS:
            halvings += 1
        stride = min(MOST_STRIDE, 2 ** max(0, halvings + 1 - len(self.widths)))
        stages = 1 + halvings - (stride.bit_length() - 1)
        more = max(0, stages - len(self.widths))
        widths = (*self.widths[:1] * more, *self.widths)[-stages:]
        depths = (*self.depths[:1] * more, *self.depths)[-stages:]
        position = Grid() if isinstance(self.position, Grid) else self.position
        return self.replace(
            size=size, channels=channels, widths=widths, depths=depths, stride=stride, position=position
        )

    def build(self, width: int) -> nn.Module:
        return ConvStemModule(self, width)


class ConvStemModule(nn.Module):
    def __init__(self, spec: ConvStem, width: int) -> None:
        super().__init__()
        self.spec = spec
        layers: list[nn.Module] = []
        inputs = spec.channels
        for stage, (channels, depth) in enumerate(zip(spec.widths, spec.depths, strict=True)):
            layers.append(ConvNorm(inputs, channels, stride=2 if stage else spec.stride))
            layers += [ConvBlock(channels) for _ in range(depth)]
            inputs = channels
        self.layers = nn.ModuleList(layers)
        self.project = LinearLayer(inputs + spec.channels, width)
        position = spec.position
        self.position = None if position is None else position.over(*spec.grid, 0).build(width)

    def layout(
        self, pixels: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of images (B, channels, H, W); `mask` is over tokens."""
        if not isinstance(pixels, Tensor) or pixels.dim() != 4 or pixels.shape[1] != self.spec.channels:
            shape = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
            raise UserError(f"pixels are {shape}", fix=f"expected a tensor (B, {self.spec.channels}, H, W)")
        if not pixels.is_floating_point():
            raise UserError(f"pixels have type {pixels.dtype}", fix="expected floating point")
        grid = cells((pixels.shape[2], pixels.shape[3]), self.spec.cell)
        limit = None if self.spec.position is None else self.spec.position.limit
        if limit is not None and grid[0] * grid[1] > limit:
            raise UserError(f"{grid[0] * grid[1]} tokens do not fit {limit} positions",
                            fix="use a smaller image or Grid()")  # fmt: skip
        return lay_out(pixels.shape[0], grid[0] * grid[1], pixels.device, mask=mask, positions=positions,
                       documents=documents, segments=segments, grid=grid, state=state)  # fmt: skip

    def forward(self, pixels: Tensor, *, context: Context) -> Tensor:
        """Images (B, channels, H, W) to (B, N, D), cells row by row."""
        # channels_last is the fastest layout for convolutions, and makes the cells' channels contiguous.
        given = pixels.to(self.project.weight.dtype).contiguous(memory_format=torch.channels_last)
        x = given
        for layer in self.layers:
            x = layer(x)
        colours = F.adaptive_avg_pool2d(given, (x.shape[2], x.shape[3]))
        x = self.project(torch.cat([x, colours.to(x.dtype)], 1).flatten(2).mT)  # (B,N,D)
        if self.position is not None:
            x = x + self.position(context, x.dtype).to(x.dtype)
        return F.dropout(x, self.spec.dropout, self.training)


class ConvNorm(Starting):
    """A 3x3 convolution without bias (larger if its stride would skip pixels), its group norm, and ReLU if `act`."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, act: bool = True) -> None:
        super().__init__()
        kernel = 3 if stride <= 2 else 2 * stride - 1
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.groups = outputs // GROUP if outputs % GROUP == 0 else 1
        self.weight = nn.Parameter(torch.ones(outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.act = act
        self.starts = {"weight": constant(1), "bias": constant(0)}

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        # Under autocast a norm returns fp32, which would double the memory of every layer after it.
        x = F.group_norm(x, self.groups, self.weight, self.bias).to(x.dtype)
        return F.relu(x) if self.act else x


class ConvBlock(nn.Module):
    """relu(x + two convolutions of x): a basic block of a ResNet (1512.03385).

    Its last norm's weight starts at 1: at 0, as in deep ResNets, a shallow stem learns more slowly.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = ConvNorm(channels, channels)
        self.second = ConvNorm(channels, channels, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(self.first(x)))

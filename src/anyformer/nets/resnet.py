"""Residual convolutional networks (1512.03385), as backbones: images into maps."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.errors import UserError
from anyformer.nets.batch_norm import BatchNorm
from anyformer.slots import Backbone

GROWTH = 4  # channels of a bottleneck's end over those of its middle


class ResNet(Backbone):
    """Stages of bottlenecks: 1x1, 3x3, 1x1, with a sum around them; each stage but the first halves the maps.

    `depths` are blocks a stage, `width` the middle channels of the first stage (doubled by each). The `imagenet` stem
    divides by 4 (7x7 of stride 2, then pooling), that of `small` images by nothing. The stride sits in the 3x3.
    `frozen` fixes all batch norms, the stem and the first stage, as detectors do that start from trained weights.

    >>> ResNet().channels, ResNet().stride
    (2048, 32)
    """

    about: ClassVar[About | None] = About(
        "y = relu(x + W3 conv3x3(W1 x)), four stages that halve the maps",
        "1512.03385",
        "sum over stages of HW (2 C 4C + 9 C^2)",
    )

    depths: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    stem: Literal["imagenet", "small"] = "imagenet"
    colours: int = 3
    frozen: bool = False

    def check(self) -> None:
        if not self.depths or min(self.depths) < 1 or self.width < 1 or self.colours < 1:
            raise UserError(f"depths {self.depths}, width {self.width} and colours {self.colours} must be 1 or more",
                            where="ResNet", fix="use depths (3, 4, 6, 3), width 64, colours 3")  # fmt: skip

    @property
    def inputs(self) -> int:
        return self.colours

    @property
    def channels(self) -> int:
        return self.width * 2 ** (len(self.depths) - 1) * GROWTH

    @property
    def stride(self) -> int:
        return (4 if self.stem == "imagenet" else 1) * 2 ** (len(self.depths) - 1)

    def build(self) -> nn.Module:
        return ResNetModule(self)


class Convolved(nn.Module):
    """A convolution without bias, its batch norm, and ReLU unless it ends a branch."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, act: bool = True, frozen: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = BatchNorm(outputs, frozen=frozen)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        return F.relu(x) if self.act else x


class Bottleneck(nn.Module):
    """relu(x + expand(spatial(reduce(x)))); `spatial` is whatever mixes neighbours, a 3x3 convolution if left out."""

    def __init__(
        self, inputs: int, middle: int, outputs: int, *, stride: int = 1, spatial: nn.Module | None = None,
        frozen: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.reduce = Convolved(inputs, middle, 1, frozen=frozen)
        self.spatial = Convolved(middle, middle, 3, stride=stride, frozen=frozen) if spatial is None else spatial
        self.expand = Convolved(middle, outputs, 1, act=False, frozen=frozen)
        changes = inputs != outputs or stride != 1
        self.shortcut = Convolved(inputs, outputs, 1, stride=stride, act=False, frozen=frozen) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.expand(self.spatial(self.reduce(x)))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNetModule(nn.Module):
    def __init__(self, spec: ResNet) -> None:
        super().__init__()
        self.spec = spec
        kernel, stride = (7, 2) if spec.stem == "imagenet" else (3, 1)
        self.stem = Convolved(spec.colours, spec.width, kernel, stride=stride, frozen=spec.frozen)
        self.stages = nn.ModuleList()
        inputs = spec.width
        for stage, depth in enumerate(spec.depths):
            middle = spec.width * 2**stage
            blocks = nn.ModuleList()
            for i in range(depth):
                stride = 2 if i == 0 and stage > 0 else 1
                blocks.append(Bottleneck(inputs, middle, middle * GROWTH, stride=stride, frozen=spec.frozen))
                inputs = middle * GROWTH
            self.stages.append(blocks)
        if spec.frozen:
            self.stem.requires_grad_(False)
            self.stages[0].requires_grad_(False)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, colours, H, W) to (B, channels, H / stride, W / stride)."""
        x = self.stem(pixels)
        if self.spec.stem == "imagenet":
            x = F.max_pool2d(x, 3, 2, padding=1)
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for block in stage:
                x = block(x)
        return x

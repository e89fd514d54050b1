"""Residual convolutional networks (1512.03385) as backbones: images into feature maps."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.nets.batch_norm import BatchNorm
from anyformer.nets.stages import GROWTH, Staged, Stages


class ResNet(Staged):
    """Stages of residual bottlenecks: 1x1, 3x3, 1x1; each stage but the first halves the maps.

    `depths` are blocks per stage, `width` the middle channels of the first stage (doubled by each). The `imagenet` stem
    has stride 4 (7x7 of stride 2, then pooling), that for `small` images stride 1. The stride is in the 3x3.
    `frozen` freezes all batch norms, the stem and the first stage, as detectors do with pretrained backbones.

    >>> ResNet().channels, ResNet().stride
    (2048, 32)
    """

    about: ClassVar[About | None] = About(
        "y = relu(x + W3 conv3x3(W1 x)), four stages that halve the maps",
        "1512.03385",
        "sum over stages of HW (2 C 4C + 9 C^2)",
    )

    frozen: bool = False
    """Whether batch norms, stem and first stage are frozen."""

    def build(self) -> nn.Module:
        return ResNetModule(self)


class Convolved(nn.Module):
    """A convolution without bias, batch norm, and ReLU unless it ends a branch."""

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
    """relu(x + expand(spatial(reduce(x)))); `spatial` is a 3x3 convolution by default."""

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


class ResNetModule(Stages):
    def __init__(self, spec: ResNet) -> None:
        kernel, stride = (7, 2) if spec.stem == "imagenet" else (3, 1)
        stem = Convolved(spec.colours, spec.width, kernel, stride=stride, frozen=spec.frozen)
        super().__init__(
            spec,
            stem,
            lambda inputs, outputs, stage, stride: Bottleneck(
                inputs, outputs // GROWTH, outputs, stride=stride, frozen=spec.frozen
            ),
        )
        if spec.frozen:
            self.stem.requires_grad_(False)
            self.stages[0].requires_grad_(False)

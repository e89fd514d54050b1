"""Local relation networks (1904.11491): a ResNet whose spatial convolutions are local relation layers."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.errors import check_at_least
from anyformer.mixers.local_relation import Relation, check_window
from anyformer.nets.batch_norm import BatchNorm
from anyformer.nets.resnet import Bottleneck, Convolved
from anyformer.nets.stages import Staged, Stages


class LRNet(Staged):
    """Stages of bottlenecks: 1x1, local relation of `window` x `window`, 1x1; each stage but the first halves the maps.

    `depths` are blocks per stage, `width` a quarter of the first stage's channels and `middle` those inside its
    bottlenecks (both doubled by each stage). Channels share weights in groups of `share`. The `imagenet` stem (1x1,
    local relation of stride 2, pooling) has stride 4, that for `small` images stride 1.

    >>> LRNet().channels, LRNet().stride
    (2048, 32)
    """

    about: ClassVar[About | None] = About(
        "y = relu(x + W3 relation_7x7(W1 x)), the stages of a ResNet",
        "1904.11491",
        "sum over stages of HW (2 C 4C + C^2 + 49 C)",
    )

    middle: int = 100
    """Channels inside the first stage's bottlenecks."""
    window: int = 7
    """Cells of a side of the neighbourhood."""
    share: int = 8
    """Channels that share one set of weights."""

    def check(self) -> None:
        super().check()
        check_at_least("LRNet", "middle", self.middle, 1, fix="use 100")
        check_window("LRNet", self.window, self.share)

    def build(self) -> nn.Module:
        return LRNetModule(self)


class Related(nn.Module):
    """A local relation layer with batch norm and ReLU, which replaces a ResNet's 3x3 convolution."""

    def __init__(self, channels: int, spec: LRNet, stride: int) -> None:
        super().__init__()
        self.relation = Relation(channels, spec.window, spec.share, stride=stride)
        self.norm = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.relation(x)))


class LRNetModule(Stages):
    def __init__(self, spec: LRNet) -> None:
        stem = nn.Sequential(
            Convolved(spec.colours, spec.width, 1), Related(spec.width, spec, 2 if spec.stem == "imagenet" else 1)
        )

        def block(inputs: int, outputs: int, stage: int, stride: int) -> nn.Module:
            middle = spec.middle * 2**stage
            return Bottleneck(inputs, middle, outputs, stride=stride, spatial=Related(middle, spec, stride))

        super().__init__(spec, stem, block)

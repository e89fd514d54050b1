"""Local relation networks (1904.11491): a ResNet whose spatial convolutions are local relation layers."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.errors import UserError
from anyformer.mixers.local_relation import Relation, check_window
from anyformer.nets.batch_norm import BatchNorm
from anyformer.nets.resnet import GROWTH, Bottleneck, Convolved
from anyformer.slots import Backbone


class LRNet(Backbone):
    """Stages of bottlenecks: 1x1, local relation of `window` x `window`, 1x1; each stage but the first halves the maps.

    `depths` are blocks a stage, `width` a quarter of the first stage's channels and `middle` those inside its
    bottlenecks (both doubled by each stage). Channels share weights in groups of `share`. The `imagenet` stem (1x1,
    local relation of stride 2, pooling) divides by 4, that of `small` images by nothing.

    >>> LRNet().channels, LRNet().stride
    (2048, 32)
    """

    about: ClassVar[About | None] = About(
        "y = relu(x + W3 relation_7x7(W1 x)), the stages of a ResNet",
        "1904.11491",
        "sum over stages of HW (2 C 4C + C^2 + 49 C)",
    )

    depths: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    middle: int = 100
    window: int = 7
    share: int = 8
    stem: Literal["imagenet", "small"] = "imagenet"
    colours: int = 3

    def check(self) -> None:
        if min(*self.depths, self.width, self.middle, self.colours) < 1:
            given = f"depths {self.depths}, width {self.width}, middle {self.middle} and colours {self.colours}"
            raise UserError(f"{given} must be 1 or more", where="LRNet",
                            fix="use depths (3, 4, 6, 3), width 64, middle 100")  # fmt: skip
        check_window("LRNet", self.window, self.share)

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
        return LRNetModule(self)


class Related(nn.Module):
    """A local relation layer, its batch norm and ReLU: what stands where a ResNet has a 3x3 convolution."""

    def __init__(self, channels: int, spec: LRNet, stride: int) -> None:
        super().__init__()
        self.relation = Relation(channels, spec.window, spec.share, stride=stride)
        self.norm = BatchNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.relation(x)))


class LRNetModule(nn.Module):
    def __init__(self, spec: LRNet) -> None:
        super().__init__()
        self.spec = spec
        self.stem = nn.Sequential(
            Convolved(spec.colours, spec.width, 1), Related(spec.width, spec, 2 if spec.stem == "imagenet" else 1)
        )
        self.stages = nn.ModuleList()
        inputs = spec.width
        for stage, depth in enumerate(spec.depths):
            middle, outputs = spec.middle * 2**stage, spec.width * 2**stage * GROWTH
            blocks = nn.ModuleList()
            for i in range(depth):
                stride = 2 if i == 0 and stage > 0 else 1
                blocks.append(Bottleneck(inputs, middle, outputs, stride=stride, spatial=Related(middle, spec, stride)))
                inputs = outputs
            self.stages.append(blocks)

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

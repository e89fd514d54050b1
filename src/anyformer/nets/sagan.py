"""SAGAN (1805.08318): a generator and a discriminator of images, both with self-attention on their feature maps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.building import materialise
from anyformer.core.own_init import Starting, constant
from anyformer.errors import UserError, check_at_least
from anyformer.nets.batch_norm import MOMENTUM, BatchNorm
from anyformer.nets.map_attention import MapAttention
from anyformer.nets.spectral import SpectralConv, SpectralLinear, SpectralTable
from anyformer.slots import Network

START = 4  # side of the generator's first feature maps


class SaganChannels(NamedTuple):
    """Channel multipliers of the width: of the generator's start and up-blocks, and of the discriminator's blocks."""

    generator: tuple[int, ...]
    discriminator: tuple[int, ...]
    halvings: int  # number of first discriminator blocks that halve the maps

    def sides(self, size: int) -> tuple[list[int], list[int]]:
        """Side of the feature maps after each block of both networks."""
        up = [START * 2**i for i in range(1, len(self.generator))]
        down = [size >> min(i + 1, self.halvings) for i in range(len(self.discriminator))]
        return up, down


# 128: the published network. 64: the same without its widest stage. 32: that of SNGAN for CIFAR (1802.05957).
LAYOUTS = {
    32: SaganChannels((4, 4, 4, 4), (2, 2, 2, 2), 2),
    64: SaganChannels((16, 8, 4, 2, 1), (1, 2, 4, 8, 16), 4),
    128: SaganChannels((16, 16, 8, 4, 2, 1), (1, 2, 4, 8, 16, 16), 5),
}


class SAGAN(Network):
    """Images from noise and a class; `attention` is the side of the feature maps with self-attention, None for none.

    The generator upsamples 4x4 maps by residual blocks with class-conditional batch norm; the discriminator downsamples
    and adds the class by projection (1802.05637). Every weight is spectrally normalised. `width` is the base number of
    channels of the published multipliers (16 to 1 at 128).

    >>> SAGAN(size=32, attention=16, width=4).build(seed=0).generate(torch.zeros(2, 128)).shape
    torch.Size([2, 3, 32, 32])
    """

    about: ClassVar[About | None] = About(
        "y = x + gamma * o(softmax(f(x) g(x)') h(x)); D: min hinge(1 - D(real)) + hinge(1 + D(G(z))), G: max D(G(z))",
        "1805.08318", "T^2 D on maps of T places",
    )  # fmt: skip
    size: Literal[32, 64, 128] = 128
    """Rows and columns of an image."""
    classes: int = 1
    """Number of classes; set by the data."""
    attention: int | None = 32
    """Side of the feature maps with self-attention; None: no attention."""
    width: int = 64
    """Base number of channels."""
    noise: int = 128
    """Dimension of the noise."""
    colours: int = 3
    """Channels of an image, 1 for gray; set by the data."""

    def check(self) -> None:
        for name in ("classes", "width", "noise", "colours"):
            check_at_least("SAGAN", name, getattr(self, name), 1, fix=f"use {name}=64")
        up, down = LAYOUTS[self.size].sides(self.size)
        shared = sorted(set(up) & set(down))
        if self.attention is not None and self.attention not in shared:
            raise UserError(f"no maps of both nets have side {self.attention}", where="SAGAN.attention",
                            fix=f"use one of {', '.join(map(str, shared))}, or None")  # fmt: skip

    def build(self, *, device: Any = None, dtype: torch.dtype | None = None, seed: int | None = None) -> SAGANModule:
        """Both nets with fresh weights, as `Model.build`."""
        return materialise(self, lambda: SAGANModule(self), "xavier", device, dtype, seed)


class ClassBatchNorm(Starting):
    """Class-conditional batch norm (1707.00683)."""

    def __init__(self, classes: int, channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(classes, channels))
        self.bias = nn.Parameter(torch.zeros(classes, channels))
        self.mean = nn.Parameter(torch.zeros(channels), requires_grad=False)
        self.var = nn.Parameter(torch.ones(channels), requires_grad=False)
        self.starts = {"weight": constant(1), "bias": constant(0), "mean": constant(0), "var": constant(1)}

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        training = self.training and self.weight.requires_grad
        x = F.batch_norm(x, self.mean, self.var, None, None, training, MOMENTUM, self.eps)
        factor, shift = (F.embedding(labels, table)[:, :, None, None] for table in (self.weight, self.bias))
        return torch.addcmul(shift, x, factor)


class UpBlock(nn.Module):
    """A residual block of the generator: norm, ReLU, twice the size, 3x3, norm, ReLU, 3x3."""

    def __init__(self, classes: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = ClassBatchNorm(classes, inputs), ClassBatchNorm(classes, outputs)
        self.conv1, self.conv2 = SpectralConv(inputs, outputs, 3), SpectralConv(outputs, outputs, 3)
        self.shortcut = SpectralConv(inputs, outputs, 1)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """(B,C,H,W) to (B,C',2H,2W)."""
        y = self.conv1(twice(F.relu(self.norm1(x, labels))))
        y = self.conv2(F.relu(self.norm2(y, labels)))
        return y + twice(self.shortcut(x))  # a 1x1 convolution commutes with upsampling and is cheaper before it


def twice(x: Tensor) -> Tensor:
    """Nearest-neighbour upsampling by 2."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


class DownBlock(nn.Module):
    """A residual block of the discriminator: ReLU, 3x3, ReLU, 3x3, average pooling if `halve`.

    The `first` omits the ReLU on its input, the pixels.
    """

    def __init__(self, inputs: int, outputs: int, *, halve: bool, first: bool) -> None:
        super().__init__()
        self.halve, self.first = halve, first
        self.conv1, self.conv2 = SpectralConv(inputs, outputs, 3), SpectralConv(outputs, outputs, 3)
        self.shortcut = SpectralConv(inputs, outputs, 1) if halve or inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """(B,C,H,W) to (B,C',H/2,W/2), or to the same size."""
        y = self.conv2(F.relu(self.conv1(x if self.first else F.relu(x))))
        if self.halve:
            x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
        return y + (x if self.shortcut is None else self.shortcut(x))


class Generator(nn.Module):
    def __init__(self, spec: SAGAN) -> None:
        super().__init__()
        layout = LAYOUTS[spec.size]
        channels = [spec.width * n for n in layout.generator]
        up, _ = layout.sides(spec.size)
        self.place = None if spec.attention is None else up.index(spec.attention)
        self.start = SpectralLinear(spec.noise, channels[0] * START * START)
        self.blocks = nn.ModuleList(UpBlock(spec.classes, a, b) for a, b in pairwise(channels))
        self.attention = None if self.place is None else MapAttention(channels[self.place + 1])
        self.norm = BatchNorm(channels[-1])
        self.end = SpectralConv(channels[-1], spec.colours, 3)

    def forward(self, z: Tensor, labels: Tensor) -> Tensor:
        """Noise (B,Z) and labels (B,) to images (B,colours,H,W) between -1 and 1."""
        x = self.start(z).unflatten(1, (-1, START, START))  # (B,C,4,4)
        for i, block in enumerate(self.blocks):
            x = block(x, labels)
            if self.attention is not None and i == self.place:
                x = self.attention(x)
        return torch.tanh(self.end(F.relu(self.norm(x))))


class Discriminator(nn.Module):
    def __init__(self, spec: SAGAN) -> None:
        super().__init__()
        layout = LAYOUTS[spec.size]
        channels = [spec.colours, *(spec.width * n for n in layout.discriminator)]
        _, down = layout.sides(spec.size)
        self.place = None if spec.attention is None else down.index(spec.attention)
        self.blocks = nn.ModuleList(
            DownBlock(a, b, halve=i < layout.halvings, first=i == 0) for i, (a, b) in enumerate(pairwise(channels))
        )
        self.attention = None if self.place is None else MapAttention(channels[self.place + 1])
        self.out = SpectralLinear(channels[-1], 1)
        self.classes = SpectralTable(spec.classes, channels[-1])

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Images (B,colours,H,W) and labels (B,) to logits (B,); above 0 means real."""
        x = images
        for i, block in enumerate(self.blocks):
            x = block(x)
            if self.attention is not None and i == self.place:
                x = self.attention(x)
        x = F.relu(x).sum((2, 3))  # (B,C)
        return self.out(x)[:, 0] + (x * self.classes(labels)).sum(1)


class SAGANModule(nn.Module):
    def __init__(self, spec: SAGAN) -> None:
        super().__init__()
        self.spec = spec
        self.generator = Generator(spec)
        self.discriminator = Discriminator(spec)

    def forward(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """The same as `generate`."""
        return self.generate(z, labels)

    def draw_noise(self, rows: int) -> Tensor:
        """Noise (B,`noise`) from torch's global generator of the network's device."""
        weight = self.generator.start.weight
        return torch.randn(rows, self.spec.noise, device=weight.device)

    def generate(self, z: Tensor, labels: Tensor | None = None) -> Tensor:
        """Images (B,colours,H,W) between -1 and 1 from noise (B,`noise`); with a single class `labels` may be
        omitted."""
        if z.dim() != 2 or z.shape[1] != self.spec.noise:
            raise UserError(f"noise has shape {tuple(z.shape)}", where="z", fix=f"expected (B, {self.spec.noise})")
        return self.generator(z.to(self.dtype), self.checked(labels, z))

    def discriminate(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits (B,) of images (B,colours,H,W) between -1 and 1: above 0 means real."""
        shape = (self.spec.colours, self.spec.size, self.spec.size)
        if images.dim() != 4 or images.shape[1:] != shape:
            raise UserError(f"images have shape {tuple(images.shape)}", where="images", fix=f"expected (B, {shape})")
        if not images.is_floating_point():
            raise UserError(f"images have type {images.dtype}", where="images", fix="scale them to -1 to 1")
        return self.discriminator(images.to(self.dtype), self.checked(labels, images))

    def checked(self, labels: Tensor | None, rows: Tensor) -> Tensor:
        """Validate labels; their range is only checked if that needs no GPU synchronisation."""
        classes = self.spec.classes
        if labels is None and classes == 1:
            return torch.zeros(rows.shape[0], dtype=torch.long, device=rows.device)
        if labels is None or labels.shape != rows.shape[:1] or labels.dtype != torch.long:
            what = "no labels" if labels is None else f"labels of shape {tuple(labels.shape)} and type {labels.dtype}"
            raise UserError(what, where="labels", fix=f"expected ({rows.shape[0]},) of torch.long, 0 to {classes - 1}")
        if labels.device.type == "cpu" and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
            raise UserError("a label is out of range", where="labels", fix=f"use 0 to {classes - 1}")
        return labels

    @property
    def dtype(self) -> torch.dtype:
        return self.discriminator.out.weight.dtype

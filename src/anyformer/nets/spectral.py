"""Spectral normalisation (1802.05957): layers whose weight is divided by its largest singular value."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.own_init import Starting, constant, uniform
from anyformer.kernels.full_precision import full_precision

FIRST = 15  # power iterations at initialisation, so that a fresh layer is normalised before its first training pass
EPS = 1e-12


class Spectral(Starting):
    """A weight W used as W / s, s = u'Wv, flattened to its first dimension times all others; Glorot initialisation.

    `u` estimates the first left singular vector by one power iteration per training pass. The right one follows from
    it:
    v = W'u / |W'u|. Gradients treat u and v as constants.
    """

    def __init__(self, shape: tuple[int, ...], *, bias: bool = True) -> None:
        super().__init__()
        places = math.prod(shape[2:])
        bound = math.sqrt(6 / ((shape[0] + shape[1]) * places))
        self.weight = nn.Parameter(torch.empty(shape))
        self.u = nn.Parameter(torch.empty(shape[0]), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(shape[0])) if bias else None
        self.starts["weight"] = uniform(-bound, bound)
        self.starts["u"] = self.first
        self.starts["bias"] = constant(0)

    def first(self, p: Tensor, generator: torch.Generator | None) -> None:
        """Initialise u: a random vector after FIRST power iterations on the weight, which is initialised before it."""
        exact = torch.promote_types(p.dtype, torch.float32)
        matrix, u = self.weight.flatten(1).to(exact), p.normal_(generator=generator).to(exact)
        for _ in range(FIRST):
            u = turned(matrix, u)
        p.copy_(u)

    def normed(self) -> Tensor:
        """W / s, in the weight's dtype; the estimate is in float32 or better."""
        with full_precision(self.weight.device):
            matrix = self.weight.flatten(1)  # (out, rest)
            matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
            with torch.no_grad():
                u = unit(self.u.to(matrix.dtype))  # an EMA of unit vectors is shorter than 1
                if self.training and self.weight.requires_grad:
                    u = turned(matrix, u)
                    self.u.copy_(u)
                v = unit(matrix.mT @ u)
            return self.weight / (u @ matrix @ v).to(self.weight.dtype)


def turned(matrix: Tensor, u: Tensor) -> Tensor:
    """One power iteration."""
    return unit(matrix @ unit(matrix.mT @ u))


def unit(vector: Tensor) -> Tensor:
    return F.normalize(vector, dim=0, eps=EPS)


class SpectralConv(Spectral):
    """A convolution of odd `kernel` with "same" padding."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> None:
        super().__init__((outputs, inputs, kernel, kernel), bias=bias)
        self.padding = kernel // 2

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.normed(), self.bias, padding=self.padding)


class SpectralLinear(Spectral):
    """y = x W' / s + b."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__((outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.normed(), self.bias)


class SpectralTable(Spectral):
    """One vector per class."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__((classes, width), bias=False)

    def forward(self, labels: Tensor) -> Tensor:
        return F.embedding(labels, self.normed())

"""Numerical feature embeddings: non-linear terms added to x W + b of each number column (2203.05556)."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.device_tables import Known, cached_table
from anyformer.core.own_init import Starting, constant, normal
from anyformer.errors import UserError, check_range
from anyformer.slots import NumberCurve

LAST_EDGE = 3.0  # standard deviations; beyond it a bin would have about one row in a thousand


class PiecewiseCurve(NumberCurve):
    """A piecewise linear function with `bins` bins between quantiles of the normal distribution.

    Number columns are scaled to that distribution, so that all bins have about equally many training rows. All slopes
    start at 0, so that it has no effect at initialisation.
    """

    about: ClassVar[About | None] = About(
        "y = sum_i clip((x - e_i) / (e_{i+1} - e_i), 0, 1) V_i, e_i normal quantiles", "2203.05556", "F bins D"
    )

    bins: int = 32
    """Number of bins."""

    def check(self) -> None:
        check_range("PiecewiseCurve", "bins", self.bins, 2, fix="use 32")

    def build(self, columns: int, width: int) -> nn.Module:
        return PiecewiseCurveModule(self, columns, width)


class PiecewiseCurveModule(Starting):
    def __init__(self, spec: PiecewiseCurve, columns: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(columns, spec.bins, width))
        self.starts["weight"] = constant(0.0)
        inner = [NormalDist().inv_cdf(i / spec.bins) for i in range(1, spec.bins)]
        last = max(LAST_EDGE, inner[-1] + 0.1)
        self.edges = (-last, *inner, last)
        self.known: Known = {}

    def forward(self, numbers: Tensor) -> Tensor:
        """(B,F) to (B,F,D)."""
        dtype = numbers.dtype
        edges = cached_table(self.known, dtype, numbers.device, lambda: torch.tensor(self.edges, dtype=dtype))
        filled = ((numbers[..., None] - edges[:-1]) / edges.diff()).clamp(0, 1)  # (B,F,bins)
        return torch.einsum("bfn,fnd->bfd", filled.to(self.weight.dtype), self.weight)


class PeriodicCurve(NumberCurve):
    """Sines and cosines of `frequencies` learned frequencies, a linear layer of each column and a ReLU.

    Frequencies are initialised from a normal distribution with standard deviation `sigma`: larger is finer.
    """

    about: ClassVar[About | None] = About(
        "y = relu(V [sin(2 pi c x), cos(2 pi c x)] + b), c learned", "2203.05556", "2 F frequencies D"
    )

    frequencies: int = 16
    """Learned frequencies of a column."""
    sigma: float = 0.1
    """Standard deviation of the initial frequencies."""

    def check(self) -> None:
        check_range("PeriodicCurve", "frequencies", self.frequencies, 1, fix="use 16")
        if self.sigma <= 0:
            raise UserError(f"sigma {self.sigma} is not positive", where="PeriodicCurve", fix="use 0.1")

    def build(self, columns: int, width: int) -> nn.Module:
        return PeriodicCurveModule(self, columns, width)


class PeriodicCurveModule(Starting):
    def __init__(self, spec: PeriodicCurve, columns: int, width: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.zeros(columns, spec.frequencies))
        self.weight = nn.Parameter(torch.zeros(columns, 2 * spec.frequencies, width))
        self.shift = nn.Parameter(torch.zeros(columns, width))
        self.starts["frequency"] = normal(spec.sigma)
        self.starts["weight"] = normal((2 * spec.frequencies) ** -0.5)
        self.starts["shift"] = constant(0.0)

    def forward(self, numbers: Tensor) -> Tensor:
        """(B,F) to (B,F,D)."""
        angle = 2 * math.pi * numbers.to(self.frequency.dtype)[..., None] * self.frequency  # (B,F,frequencies)
        waves = torch.cat([angle.sin(), angle.cos()], -1)
        return torch.relu(torch.einsum("bfn,fnd->bfd", waves, self.weight) + self.shift)

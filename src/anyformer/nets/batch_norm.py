"""Batch normalisation whose running statistics are parameters without gradient, stored like all others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.own_init import Starting, constant

MOMENTUM = 0.1


class BatchNorm(Starting):
    """(x - mean) / sqrt(var + eps) * weight + bias for each channel of (B,C,H,W), over batch and positions.

    Batch statistics in training, running ones otherwise; `frozen` always uses the running ones and is not trained
    (DETR's backbone). `gain` is the initial weight: 0 makes a residual branch start at zero.
    """

    def __init__(self, channels: int, *, eps: float = 1e-5, frozen: bool = False, gain: float = 1.0) -> None:
        super().__init__()
        self.eps, self.frozen = eps, frozen
        self.weight = nn.Parameter(torch.ones(channels), requires_grad=not frozen)
        self.bias = nn.Parameter(torch.zeros(channels), requires_grad=not frozen)
        self.mean = nn.Parameter(torch.zeros(channels), requires_grad=False)
        self.var = nn.Parameter(torch.ones(channels), requires_grad=False)
        self.starts = {"weight": constant(gain), "bias": constant(0), "mean": constant(0), "var": constant(1)}

    def forward(self, x: Tensor) -> Tensor:
        training = self.training and self.weight.requires_grad  # frozen here, or by the settings of a training
        return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, training, MOMENTUM, self.eps)

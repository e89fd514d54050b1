"""Filters of Hyena: a short one with free taps, and long implicit ones whose taps a network computes from the lag."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.own_init import Starting, constant, normal, uniform
from anyformer.kernels.full_precision import full_precision

SLOW, FAST = 1.5, 0.3  # the first and last channel's window decays to LEFT after this fraction of the longest lag
LEFT = 0.01


class ShortFilter(Starting):
    """y_t = b + sum_j w_j x_{t-j} for each channel, over `taps` tokens: the newest ones, or those around t."""

    def __init__(self, channels: int, taps: int, causal: bool) -> None:
        super().__init__()
        self.after = 0 if causal else taps // 2
        self.weight = nn.Parameter(torch.empty(taps, 1, channels))
        self.bias = nn.Parameter(torch.empty(channels))
        self.starts = {"weight": uniform(-(taps**-0.5), taps**-0.5), "bias": constant(0.0)}

    def forward(self, x: Tensor) -> Tensor:
        """(N,T,W) to (N,T,W)."""
        y: Tensor = Shifts.apply(x, self.weight.to(x.dtype), self.bias.to(x.dtype), self.after)
        return y


class Shifts(torch.autograd.Function):
    """A depthwise convolution as in-place sums of shifted copies; only x is saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, after: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.after = after
        y = torch.addcmul(bias, x, weight[after])
        for j in range(weight.shape[0]):
            if j != after:
                late, early = pair(y, x, j - after)
                late.addcmul_(early, weight[j])
        return y

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad, taps = given * weight[ctx.after], []
        for j in range(weight.shape[0]):
            taps.append(together(given, x, j - ctx.after))
            if j != ctx.after:
                late, early = pair(given, grad, j - ctx.after)
                early.addcmul_(late, weight[j])
        return grad, torch.stack(taps)[:, None], given.sum((0, 1)), None


def together(late: Tensor, early: Tensor, lag: int) -> Tensor:
    """Products of tokens `lag` apart, summed: (D,)."""
    if torch.compiler.is_compiling():  # zero padding gives equal lengths, as fusing sums of nearly equal lengths fails
        lag = max(-late.shape[1], min(lag, late.shape[1]))
        return (late * F.pad(early, (0, 0, lag, -lag))).sum((0, 1))
    late, early = pair(late, early, lag)
    return (late * early).sum((0, 1))


def pair(late: Tensor, early: Tensor, lag: int) -> tuple[Tensor, Tensor]:
    """Slices of both that are `lag` tokens apart; negative lags look ahead; empty if the lag exceeds the text."""
    length = late.shape[1]
    rest = max(0, length - abs(lag))
    return (late[:, length - rest :], early[:, :rest]) if lag >= 0 else (late[:, :rest], early[:, length - rest :])


class SineLayer(Starting):
    """sin(frequency * (W x + b)), with a learned frequency per channel."""

    def __init__(self, inputs: int, outputs: int, frequency: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.frequency = nn.Parameter(torch.empty(outputs))
        bound = inputs**-0.5
        self.starts = {"weight": uniform(-bound, bound), "bias": uniform(-bound, bound),
                       "frequency": constant(frequency)}  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(L, inputs) to (L, outputs) in the dtype of x, whatever that of the weights."""
        return torch.sin(self.frequency.to(x.dtype) * F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype)))


class LongFilter(Starting):
    """h_k = exp(-a k / longest) * network(k) for each channel and filter; lag 0 has an additional free tap.

    The network's inputs are k / longest and sines and cosines of it, not the length of the text: the taps do not depend
    on the length.
    """

    def __init__(self, channels: int, filters: int, sides: int, *, longest: int, bands: int, width: int, depth: int,
                 frequency: float) -> None:  # fmt: skip
        super().__init__()
        self.channels, self.filters, self.sides, self.longest, self.bands = channels, filters, sides, longest, bands
        sizes = [1 + 2 * bands, *[width] * depth]
        self.layers = nn.Sequential(*(SineLayer(sizes[i], sizes[i + 1], frequency) for i in range(depth)))
        self.taps = nn.Parameter(torch.empty(filters * sides * channels, width))
        self.skip = nn.Parameter(torch.empty(filters, channels))
        self.starts = {"taps": uniform(-(width**-0.5), width**-0.5), "skip": normal(1.0)}

    def forward(self, lags: int) -> Tensor:
        """The taps of lags 0 .. lags - 1, (filters, sides, D, lags), in float32 or better."""
        dtype = torch.promote_types(self.taps.dtype, torch.float32)
        with full_precision(self.taps.device):  # bf16 cannot distinguish neighbouring lags
            share = torch.arange(lags, device=self.taps.device, dtype=dtype) / self.longest  # (lags,)
            turns = 2 * math.pi * share[:, None] * torch.arange(1, self.bands + 1, device=share.device)
            seen = torch.cat([share[:, None], turns.cos(), turns.sin()], -1)  # (lags, 1 + 2 bands)
            taps = F.linear(self.taps.to(dtype), self.layers(seen)).view(self.filters, self.sides, self.channels, lags)
            taps = taps * self.window(share)
            first = F.pad(self.skip.to(dtype)[:, None, :, None], (0, lags - 1, 0, 0, 0, self.sides - 1))
            return taps + first

    def window(self, share: Tensor) -> Tensor:
        """The exponential window (D, lags), with a decay rate per channel."""
        rates = torch.linspace(-math.log(LEFT) / SLOW, -math.log(LEFT) / FAST, self.channels,
                               device=share.device, dtype=share.dtype)  # fmt: skip
        return torch.exp(-rates[:, None] * share)

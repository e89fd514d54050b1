"""Dropout that on a CPU draws 16 random bits per element, which is faster than torch's random number per element."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BITS = 16


def dropout(x: Tensor, p: float) -> Tensor:
    """`F.dropout` in training: elements are 0 with probability `p`, to within 2**-17, and the others are scaled up."""
    if x.device.type != "cpu" or x.dtype.itemsize < 4 or torch.compiler.is_compiling():
        return F.dropout(x, p)
    return x * draw_mask(x, p)


def draw_mask(x: Tensor, p: float) -> Tensor:
    """A factor for each element of x: 0, or the scale that keeps the mean."""
    steps = 2**BITS
    dropped = round(p * steps)
    words = torch.empty(-(-x.numel() * BITS // 64), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)  # -steps / 2 ... steps / 2 - 1
    return (bits >= dropped - steps // 2).to(x.dtype).mul_(steps / max(1, steps - dropped))

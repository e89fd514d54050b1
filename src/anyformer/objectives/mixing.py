"""Blending pairs of images: mixup (1710.09412) and cutmix (1905.04899)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def beta(alpha: float, generator: torch.Generator) -> float:
    """One draw of Beta(alpha, alpha); the ratio of two gamma draws, by Johnk's method on logarithms."""
    while True:
        u, v = torch.rand(2, generator=generator, dtype=torch.float64).clamp(min=1e-300).tolist()
        x, y = math.log(u) / alpha, math.log(v) / alpha
        high = max(x, y)
        if high + math.log(math.exp(x - high) + math.exp(y - high)) <= 0:
            return 1 / (1 + math.exp(min(y - x, 700.0)))


def mix(pixels: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Each image faded into another of the batch: pixels, the other's place, and the share of the first."""
    share = beta(alpha, generator)
    partner = torch.randperm(len(pixels), generator=generator)
    mixed = share * pixels + (1 - share) * pixels[partner]
    return mixed, partner, torch.tensor(share, dtype=torch.float32)


def cut_and_paste(pixels: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A rectangle of another image in each image; the share is what is left of the first."""
    share = beta(alpha, generator)
    partner = torch.randperm(len(pixels), generator=generator)
    height, width = pixels.shape[-2:]
    side = math.sqrt(1 - share)
    row, column = (int(torch.randint(size, (), generator=generator)) for size in (height, width))
    top, bottom = max(0, row - int(height * side / 2)), min(height, row + int(height * side / 2))
    left, right = max(0, column - int(width * side / 2)), min(width, column + int(width * side / 2))
    pasted = pixels.clone()
    pasted[..., top:bottom, left:right] = pixels[partner][..., top:bottom, left:right]
    kept = 1 - (bottom - top) * (right - left) / (height * width)
    return pasted, partner, torch.tensor(kept, dtype=torch.float32)

"""Tokens that look like a text: frequent words are frequent, and a word says something about the next."""

from __future__ import annotations

import torch
from torch import Tensor


def zipf_text(rows: int, length: int, vocab: int, seed: int = 0) -> Tensor:
    """Tokens (rows, length): half of them follow from the one before, half are drawn by Zipf's law.

    Random tokens would let the loss stand still; here it falls, and every machine draws the same tokens.
    """
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.arange(1, vocab + 1, dtype=torch.float64)
    shares = (1 / ranks).cumsum(0) / (1 / ranks).sum()
    drawn = torch.searchsorted(shares, torch.rand(rows, length, dtype=torch.float64, generator=generator))
    drawn = drawn.clamp(max=vocab - 1)
    follows = torch.rand(rows, length, generator=generator) < 0.5
    tokens = drawn.clone()
    for t in range(1, length):
        tokens[:, t] = torch.where(follows[:, t], (31 * tokens[:, t - 1] + 7) % vocab, drawn[:, t])
    return tokens

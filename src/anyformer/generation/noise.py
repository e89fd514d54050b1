"""Sampling noise as a function of (seed, step, token): no generator to carry along, no neighbour that matters.

Gumbel noise g = -log(-log u) turns sampling into a maximum: argmax(logits + g) is token i with probability
softmax(logits)[i]. The uniform numbers come from an integer hash (SplitMix64's finaliser) of a counter, in whole-number
operations that are exact on every device and for every batch shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.errors import UserError

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # Steele, Lea, Flood 2014


def signed(value: int) -> int:
    """A 64-bit pattern as the int64 that holds it; torch's products then wrap as unsigned ones would."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def mixed(x: Tensor) -> Tensor:
    """A one-to-one scramble of 64-bit numbers in which every bit depends on every bit."""
    x = (x ^ shifted(x, 30)) * signed(FIRST)
    x = (x ^ shifted(x, 27)) * signed(SECOND)
    return x ^ shifted(x, 31)


def uniform(seeds: Tensor, step: int, vocab: int) -> Tensor:
    """Numbers strictly between 0 and 1, (B,V), from seeds (B,), the step and the token."""
    row = mixed(mixed(seeds + signed(GOLDEN)) + signed((step + 1) * GOLDEN))[:, None]  # (B,1)
    counter = torch.arange(1, vocab + 1, device=seeds.device) * signed(GOLDEN)
    bits = shifted(mixed(row + counter), 12)  # 52 bits: half a unit more is still exact in float64
    return (bits.to(finest(seeds.device)) + 0.5) * 2.0**-52


def finest(device: torch.device) -> torch.dtype:
    """The most precise real numbers a device has: float64, but Apple's GPUs stop at float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def gumbel(seeds: Tensor, step: int, vocab: int) -> Tensor:
    """Noise (B,V) whose addition to logits makes their argmax a draw from their softmax."""
    return -torch.log(-torch.log(uniform(seeds, step, vocab)))


def draw(logits: Tensor, seeds: Tensor, step: int) -> Tensor:
    """One token a row, (B,), from logits (B,V) by each row's own seed."""
    noise = gumbel(seeds, step, logits.shape[-1])
    return (logits.to(noise.dtype) + noise).argmax(-1)


def row_seeds(seed: int | Sequence[int] | None, prompts: int, copies: int, device: torch.device) -> Tensor:
    """One seed a row, prompt by prompt: a prompt's first text depends on its seed alone, further ones on their number.

    One seed for all prompts is the same for each, so that a prompt gets the same text alone and in company.
    """
    if seed is None:
        first = torch.randint(2**62, (prompts,))  # on the CPU, where torch.manual_seed makes it repeatable everywhere
    elif isinstance(seed, int):
        first = torch.full((prompts,), signed(seed))
    elif len(seed) != prompts:
        raise UserError(f"{len(seed)} seeds for {prompts} prompts", where="Generation.seed",
                        fix="give one number, or one for each prompt")  # fmt: skip
    else:
        first = torch.tensor([signed(one) for one in seed])
    number = torch.arange(copies)
    others = mixed(first[:, None] ^ mixed(number * signed(GOLDEN)))  # (prompts, copies)
    return torch.where(number == 0, first[:, None], others).flatten().to(device)

"""Sampling noise as a function of (seed, step, token): no generator state, and independent of the batch.

Gumbel noise g = -log(-log u) turns sampling into an argmax: argmax(logits + g) is token i with probability
softmax(logits)[i]. The uniform numbers come from an integer hash (SplitMix64's finaliser) of a counter, in integer
arithmetic that is exact on every device and for every batch shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import UserError

MANY = 4096  # vocabulary size from which a CPU prefilters candidates before computing noise
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # Steele, Lea, Flood 2014


def to_signed(value: int) -> int:
    """An unsigned 64-bit value as int64; torch's int64 products then wrap like unsigned ones."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's is arithmetic."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


def mix_bits(x: Tensor) -> Tensor:
    """A bijective 64-bit hash with full avalanche."""
    x = (x ^ shift_right(x, 30)) * to_signed(FIRST)
    x = (x ^ shift_right(x, 27)) * to_signed(SECOND)
    return x ^ shift_right(x, 31)


def uniform(seeds: Tensor, step: int | Tensor, vocab: int, counter: Tensor | None = None) -> Tensor:
    """Numbers strictly between 0 and 1, (B,V), from seeds (B,), the step (one, or (B,)) and the token."""
    counter = token_counter(vocab, seeds.device) if counter is None else counter
    return to_unit_interval(shift_right(mix_bits(row_keys(seeds, step)[:, None] + counter), 12))


def token_counter(vocab: int, device: torch.device) -> Tensor:
    """The counter of each token in a row's noise, (V,).

    Compiled code gets it as an input: the compiler would compute the product with unbounded integers.
    """
    return torch.arange(1, vocab + 1, device=device) * to_signed(GOLDEN)


def row_keys(seeds: Tensor, step: int | Tensor) -> Tensor:
    """The hash key of each row at that step, (B,)."""
    at = to_signed((step + 1) * GOLDEN) if isinstance(step, int) else (step + 1) * to_signed(GOLDEN)
    return mix_bits(mix_bits(seeds + to_signed(GOLDEN)) + at)


def to_unit_interval(bits: Tensor) -> Tensor:
    """Map 52 bits to numbers strictly between 0 and 1; adding half a unit is exact in float64."""
    return (bits.to(widest_float(bits.device)) + 0.5) * 2.0**-52


def widest_float(device: torch.device) -> torch.dtype:
    """The widest float of a device: float64, but float32 on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def gumbel(seeds: Tensor, step: int | Tensor, vocab: int, counter: Tensor | None = None) -> Tensor:
    """Gumbel noise (B,V): the argmax of logits plus noise is a sample from their softmax."""
    return -torch.log(-torch.log(uniform(seeds, step, vocab, counter)))


def draw(logits: Tensor, seeds: Tensor, step: int | Tensor) -> Tensor:
    """Sample one token per row, (B,), from logits (B,V) by each row's seed and step."""
    vocab = logits.shape[-1]
    if logits.device.type == "cpu" and vocab >= MANY:
        keys = row_keys(seeds, step).expand(len(logits))
        return torch.tensor([draw_row(row.numpy(), key) for row, key in zip(logits, keys.tolist(), strict=True)])
    noise = gumbel(seeds, step, vocab)
    return (logits.to(noise.dtype) + noise).argmax(-1)


def draw_row(logits: np.ndarray, key: int) -> int:
    """The same for one row (V,) of a large vocabulary on a CPU, with far fewer logarithms than tokens.

    argmax(logit + noise) equals argmin(E / exp(logit)) with E = -log u (exponential race). 1 - u is a lower bound of E
    without a logarithm; it leaves a handful of candidates, and only those are compared exactly.
    """
    bits = random_bits(key, len(logits))
    least = (2**53 - 1 - 2 * bits.view(np.int64)).astype(np.float32) * np.float32(2.0**-53)  # 1 - u
    with np.errstate(all="ignore"):
        weights = np.exp(logits - logits.max()).astype(np.float32, copy=False)
        times = least / weights
        first = int(times.argmin())
        reached = -math.log1p(-float(least[first])) / (float(weights[first]) or math.inf)
        able = np.flatnonzero(times <= reached * (1 + 1e-4))  # a margin far above rounding errors
    if len(able) < 2:
        return first
    noise = -torch.log(-torch.log(to_unit_interval(torch.from_numpy(bits[able].view(np.int64)))))
    return int(able[int((torch.from_numpy(logits[able]).to(noise.dtype) + noise).argmax())])


def random_bits(key: int, vocab: int) -> np.ndarray:
    """52 bits per token, (V,), the same as in `uniform`; unsigned arithmetic takes half the operations."""
    x = token_counters(vocab) + np.uint64(key & (2**64 - 1))
    for bits, factor in ((30, FIRST), (27, SECOND)):
        x ^= x >> np.uint64(bits)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    x >>= np.uint64(12)
    return x


@lru_cache(maxsize=2)
def token_counters(vocab: int) -> np.ndarray:
    """The counter of each token in a row's noise."""
    return np.arange(1, vocab + 1, dtype=np.uint64) * np.uint64(GOLDEN)


def row_seeds(seed: int | Sequence[int] | None, prompts: int, copies: int, device: torch.device) -> Tensor:
    """One seed per row, prompt by prompt: a prompt's first output uses its seed directly, further ones hash their
    index.

    A single seed is used for every prompt, so that a prompt gets the same output alone and in a batch.
    """
    if seed is None:
        first = torch.randint(2**62, (prompts,))  # on the CPU, where torch.manual_seed makes it repeatable everywhere
    elif isinstance(seed, int):
        first = torch.full((prompts,), to_signed(seed))
    elif len(seed) != prompts:
        raise UserError(f"{len(seed)} seeds for {prompts} prompts", where="Generation.seed",
                        fix="give one number, or one for each prompt")  # fmt: skip
    else:
        first = torch.tensor([to_signed(one) for one in seed])
    number = torch.arange(copies)
    others = mix_bits(first[:, None] ^ mix_bits(number * to_signed(GOLDEN)))  # (prompts, copies)
    return torch.where(number == 0, first[:, None], others).flatten().to(device)

"""Long convolutions by FFT: T log T instead of T^2.

A real sequence of length T is convolved without wrap-around by complex transforms of length M >= T, half of what zero
padding would need. Before the transform, element n is rotated by the angle -n pi / (2 M). What wraps around is then
multiplied by -i, so that the wanted sums are the real part and everything wrapped is imaginary. Taps for negative lags
are at the end of the circle, multiplied by i, so that they are real as well.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.device_tables import cos_sin

SMALLEST = 32  # sizes grow in steps of at least an eighth: few FFT plans, few compiled shapes


def fast_size(length: int) -> int:
    """The smallest size of 5, 6, 7 or 8 times a power of two that is at least `length`.

    >>> [fast_size(n) for n in (3, 33, 1024, 1025)]
    [32, 40, 1024, 1280]
    """
    size = SMALLEST
    while size < length:
        size *= 2
    for eighths in (5, 6, 7):
        if size > SMALLEST and size // 8 * eighths >= length:
            return size // 8 * eighths
    return size


def convolve(u: Tensor, ahead: Tensor, behind: Tensor | None = None) -> Tensor:
    """y_t = sum_k ahead_k u_{t-k} + sum_{k>=1} behind_k u_{t+k} for each channel, with u zero-padded.

    u (B,D,T) and taps (D,L) with L <= T; `behind`, if given, has the same length and its first tap is unused. The
    transforms are in float32, or float64 if the taps are; y has u's dtype.
    """
    # Computed here, with gradients enabled: inside, the compiler would recompute them for every element.
    turns = turned(fast_size(u.shape[-1]), ahead)
    if torch.is_grad_enabled() and (u.requires_grad or ahead.requires_grad):
        y: Tensor = Convolve.apply(u, ahead, behind, turns)
        return y
    y = torch.ops.anyformer.circle(spread(u, turns), spread_taps(ahead, behind, turns))
    return real_part(y, turns, u.shape[-1], 1).to(u.dtype)


class Convolve(torch.autograd.Function):
    """`convolve` with gradients: the backward pass has one transform more than forward, and stores no conjugates."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, ahead: Tensor, behind: Tensor | None, turns: Tensor) -> Tensor:
        y, wave, taps = torch.ops.anyformer.circle_forward(spread(u, turns), spread_taps(ahead, behind, turns))
        ctx.save_for_backward(wave, taps, turns)
        ctx.length, ctx.lags, ctx.both = u.shape[-1], ahead.shape[-1], behind is not None
        return real_part(y, turns, u.shape[-1], 1).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        wave, taps, turns = ctx.saved_tensors
        # Rotated and transformed in the opposite direction this is the conjugate of the transform of `given`, so that
        # plain products with it are correlations.
        back = torch.stack([turns[:, 0], -turns[:, 1]], -1)
        u, h = torch.ops.anyformer.circle_backward(spread(given, back), wave, taps)
        grad_ahead = real_part(h, turns, ctx.lags, -1)
        grad_behind = None
        if ctx.both:
            # Lag -k is at index size - k, as the negated imaginary part of the conjugate.
            last = h.shape[-2] - ctx.lags + 1
            c, s = (turns[last:] / turns.shape[0]).unbind(-1)
            imaginary = -(h[..., last:, 1] * c + h[..., last:, 0] * s)
            grad_behind = F.pad(imaginary.flip(-1), (1, 0))
        return real_part(u, turns, ctx.length, -1).to(given.dtype), grad_ahead, grad_behind, None


def turned(size: int, like: Tensor) -> Tensor:
    """cos and -sin of n pi / (2 size), (size, 2)."""
    angles = torch.arange(size, device=like.device, dtype=like.dtype) * (math.pi / 2 / size)
    cos, sin = cos_sin(angles)
    return torch.stack([cos, -sin], -1)


def spread(x: Tensor, turns: Tensor) -> Tensor:
    """Real (...,T) to rotated complex pairs (...,size,2) in the dtype of the turns."""
    room = turns.shape[0] - x.shape[-1]
    return (F.pad(x, (0, room)) if room else x.contiguous())[..., None] * turns  # the FFT needs contiguous input


def spread_taps(ahead: Tensor, behind: Tensor | None, turns: Tensor) -> Tensor:
    """Taps (D,L) to rotated complex pairs (D,size,2)."""
    whole = spread(ahead, turns)
    if behind is None:
        return whole
    end = F.pad(behind[:, 1:].flip(-1), (turns.shape[0] - behind.shape[-1] + 1, 0))  # (D,size), lag -k at size - k
    return whole + torch.stack([-end * turns[:, 1], end * turns[:, 0]], -1)  # i * (cos - i sin)


def real_part(pairs: Tensor, turns: Tensor, length: int, sign: int) -> Tensor:
    """The first `length` elements rotated back: Re(pairs * conj(turns)) / size, or Re(pairs * turns) / size if sign is
    -1.

    The division by the size is fused here: torch would do it in a separate pass.
    """
    c, s = (turns[:length] / turns.shape[0]).unbind(-1)
    return torch.addcmul(pairs[..., :length, 0] * c, pairs[..., :length, 1], s, value=sign)


def complex_of(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


def pairs_of(numbers: Tensor) -> Tensor:
    return torch.view_as_real(numbers.contiguous())


# The transforms as custom ops on real pairs: the compiler does not support complex numbers.


@torch.library.custom_op("anyformer::circle", mutates_args=())
def circle(x: Tensor, h: Tensor) -> Tensor:
    """M times the circular convolution of complex x (B,D,M) and h (D,M), all as pairs (...,2)."""
    wave = torch.fft.fft(complex_of(x))
    wave *= torch.fft.fft(complex_of(h))
    return pairs_of(torch.fft.ifft(wave, norm="forward"))


@circle.register_fake
def _(x: Tensor, h: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("anyformer::circle_forward", mutates_args=())
def circle_forward(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As `circle`, with the transforms of x and h for the backward pass."""
    wave, taps = torch.fft.fft(complex_of(x)), torch.fft.fft(complex_of(h))
    y = torch.fft.ifft(wave * taps, norm="forward")
    return pairs_of(y), pairs_of(wave), pairs_of(taps)


@circle_forward.register_fake
def _(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape), h.new_empty(h.shape)


@torch.library.custom_op("anyformer::circle_backward", mutates_args=())
def circle_backward(given: Tensor, wave: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    """M times the conjugates of the gradients of x (B,D,M) and h (D,M), from the conjugate of y's."""
    back = torch.fft.ifft(complex_of(given), norm="forward")
    x = torch.fft.fft(back * complex_of(taps))
    back *= complex_of(wave)
    h = torch.fft.fft(back.sum(0) if len(back) > 1 else back[0])
    return pairs_of(x), pairs_of(h)


@circle_backward.register_fake
def _(given: Tensor, wave: Tensor, taps: Tensor) -> tuple[Tensor, Tensor]:
    return given.new_empty(given.shape), taps.new_empty(taps.shape)

"""Log-mel spectra of a waveform in plain torch: Kaldi's filter banks, which AST reads (2104.01778, 2.1).

Each frame of `window` samples is centred, pre-emphasised (y_t = x_t - 0.97 x_{t-1}), multiplied by a Hann window and
turned into a power spectrum; triangular filters equally spaced in mel sum it up, and the logarithm is taken.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LOWEST = 20.0  # Hz where the first triangle begins
SHARPEN = 0.97
FLOOR = 2.0**-23  # lower bound of powers before the logarithm


def log_mel(wave: Tensor, *, sample_rate: int, mels: int, window: int, hop: int) -> Tensor:
    """(B, samples) to (B, mels, F) with F = 1 + (samples - window) // hop, in float32 or better."""
    wave = wave.to(torch.promote_types(wave.dtype, torch.float32))
    pieces = wave.unfold(-1, window, hop)  # (B,F,window)
    pieces = pieces - pieces.mean(-1, keepdim=True)
    before = torch.cat([pieces[..., :1], pieces[..., :-1]], -1)  # the first sample is its own neighbour
    turn = torch.arange(window, device=wave.device, dtype=exact(wave.device)) * (2 * math.pi / (window - 1))
    fade = 0.5 - 0.5 * turn.cos()
    size = transform_size(window)
    sharp = (pieces - SHARPEN * before) * fade.to(wave.dtype)
    # The compiler does not support complex numbers: there, the transform is a matmul.
    power = by_product(sharp, size) if torch.compiler.is_compiling() else by_transform(sharp, size)  # (B,F,bins)
    bank = triangles(sample_rate, mels, size, wave.device, wave.dtype)
    return (power @ bank).clamp(min=FLOOR).log().mT  # (B,mels,F)


def by_transform(pieces: Tensor, size: int) -> Tensor:
    """Power spectrum at frequencies 0 to size / 2, by FFT."""
    spectrum = torch.fft.rfft(F.pad(pieces, (0, size - pieces.shape[-1])))
    return torch.view_as_real(spectrum).square().sum(-1)


def by_product(pieces: Tensor, size: int) -> Tensor:
    """The same by matmuls with cosines and sines."""
    kind = exact(pieces.device)
    steps = torch.arange(pieces.shape[-1], device=pieces.device)[:, None]
    turns = steps * torch.arange(size // 2 + 1, device=pieces.device) % size  # exact integers
    angles = turns.to(kind) * (2 * math.pi / size)
    return (pieces @ angles.cos().to(pieces.dtype)).square() + (pieces @ angles.sin().to(pieces.dtype)).square()


def transform_size(window: int) -> int:
    """The FFT size for a window: the next power of two."""
    return 1 << (window - 1).bit_length()


def triangles(sample_rate: int, mels: int, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The mel filter bank (size / 2 + 1, mels); computed at use, not stored."""
    kind = exact(device)
    bins = size // 2 + 1
    low, high = mel(LOWEST), mel(sample_rate / 2)
    edges = torch.linspace(low, high, mels + 2, device=device, dtype=kind)
    at = 1127.0 * torch.log1p(torch.arange(bins, device=device, dtype=kind) * (sample_rate / size / 700.0))
    left, middle, right = edges[:-2], edges[1:-1], edges[2:]
    rising = (at[:, None] - left) / (middle - left)
    falling = (right - at[:, None]) / (right - middle)
    return torch.minimum(rising, falling).clamp(min=0).to(dtype)  # (bins,mels)


def exact(device: torch.device) -> torch.dtype:
    """The dtype of tables: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def bands(sample_rate: int) -> int:
    """Default number of mel bands for a sample rate."""
    return 128 if sample_rate >= 16000 else 64 if sample_rate >= 8000 else 32


def mel(hertz: float) -> float:
    """A frequency on the mel scale."""
    return 1127.0 * math.log1p(hertz / 700.0)

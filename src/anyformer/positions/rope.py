"""Rotary positions (2104.09864) and their context-extension scalings."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.device_tables import Known, cached_table, cos_sin
from anyformer.errors import UserError, check_at_least
from anyformer.slots import Relative
from anyformer.spec import Spec


class Scaling(Spec, slot=True):
    """Changes the frequencies for texts longer than in training."""

    def frequencies(self, theta: float, width: int, dtype: torch.dtype) -> Tensor:
        """Radians per position for each pair of channels, (width / 2,)."""
        raise NotImplementedError

    @property
    def gain(self) -> float:
        """Factor on cosines and sines, which scales the scores by its square."""
        return 1.0

    @property
    def trained(self) -> int | None:
        """The length beyond which frequencies depend on the current length; None if they never do."""
        return None


class LinearScaling(Scaling):
    """Position interpolation (2306.15595, SuperHOT): position m acts as m / factor."""

    factor: float
    """How many times longer than in training texts become."""

    def check(self) -> None:
        check_factor(self.factor, "LinearScaling")

    def frequencies(self, theta: float, width: int, dtype: torch.dtype) -> Tensor:
        return plain(theta, width, dtype) / self.factor


class NTKScaling(Scaling):
    """NTK-aware scaling by a larger base: slow frequencies are stretched by about `factor`, fast ones hardly change."""

    factor: float
    """How many times longer than in training texts become."""

    def check(self) -> None:
        check_factor(self.factor, "NTKScaling")

    def frequencies(self, theta: float, width: int, dtype: torch.dtype) -> Tensor:
        return plain(theta * self.factor ** (width / (width - 2)), width, dtype)


class DynamicScaling(Scaling):
    """NTK-aware scaling whose factor follows the length: none up to `original` tokens, growing beyond.

    The rotation of earlier keys then depends on the length, so that a KV cache cannot grow past `original` tokens.
    """

    factor: float
    """How many times longer than in training texts become."""
    original: int
    """Context length the model was trained with, in tokens."""

    def check(self) -> None:
        check_factor(self.factor, "DynamicScaling", self.original)

    @property
    def trained(self) -> int | None:
        return self.original

    def frequencies(self, theta: float, width: int, dtype: torch.dtype) -> Tensor:
        return plain(theta, width, dtype)

    def stretched(self, theta: float, width: int, dtype: torch.dtype, length: int) -> Tensor:
        longer = max(length, self.original) / self.original
        return plain(theta * (self.factor * longer - (self.factor - 1)) ** (width / (width - 2)), width, dtype)


class YarnScaling(Scaling):
    """YaRN (2309.00071): fast frequencies are kept, slow ones interpolated, with a ramp between; scores are scaled
    up."""

    factor: float
    """How many times longer than in training texts become."""
    original: int
    """Context length the model was trained with, in tokens."""
    fast: float = 32.0
    """Rotations over the original length above which a frequency is kept."""
    slow: float = 1.0
    """Rotations below which a frequency is fully interpolated."""
    attention: float | None = None
    """Factor on cosines and sines; the paper's 0.1 ln(factor) + 1 if not given."""
    truncate: bool = True
    """Whether the ends of the ramp are rounded to whole channels."""

    def check(self) -> None:
        check_factor(self.factor, "YarnScaling", self.original)

    @property
    def gain(self) -> float:
        return yarn_gain(self.factor) if self.attention is None else self.attention

    def frequencies(self, theta: float, width: int, dtype: torch.dtype) -> Tensor:
        powers = theta ** (torch.arange(0, width, 2).to(dtype) / width)
        low, high = (
            width * math.log(self.original / (n * 2 * math.pi)) / (2 * math.log(theta)) for n in (self.fast, self.slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        high = high + 0.001 if low == high else high
        ramp = ((torch.arange(width // 2).to(dtype) - low) / (high - low)).clamp(0, 1)
        return 1.0 / (self.factor * powers) * ramp + 1.0 / powers * (1 - ramp)


class Llama3Scaling(Scaling):
    """Llama 3.1: low frequencies are divided by `factor`, high ones kept, those between blended."""

    factor: float = 8.0
    """How many times longer than in training texts become."""
    low: float = 1.0
    """Wavelengths longer than original / low are fully scaled."""
    high: float = 4.0
    """Wavelengths shorter than original / high are kept."""
    original: int = 8192
    """Context length the model was trained with, in tokens."""

    def check(self) -> None:
        check_factor(self.factor, "Llama3Scaling", self.original)
        if self.high <= self.low:
            raise UserError(
                f"high {self.high} is not above low {self.low}", where="Llama3Scaling", fix="use low 1, high 4"
            )

    def frequencies(self, theta: float, width: int, dtype: torch.dtype) -> Tensor:
        kept = plain(theta, width, dtype)
        wave = 2 * math.pi / kept
        smooth = (self.original / wave - self.low) / (self.high - self.low)
        blended = (1 - smooth) * kept / self.factor + smooth * kept
        long = torch.where(wave > self.original / self.low, kept / self.factor, kept)
        between = (wave >= self.original / self.high) & (wave <= self.original / self.low)
        return torch.where(between, blended, long)


class Rope(Relative):
    """Queries and keys are rotated by their position, so that a score depends only on the difference of positions.

    `width` is the number of rotated channels per head (None: all). `layout="half"` pairs channel i with i + width/2
    (GPT-NeoX, Llama in transformers), `"interleaved"` pairs neighbours (the paper, GPT-J).
    """

    about: ClassVar[About | None] = About(
        "score = (R_i q_i) . (R_j k_j), R_t turns pair c by t theta^(-2c/C)", "2104.09864", "T D"
    )

    theta: float = 10000.0
    """Base of the frequencies."""
    width: int | None = None
    """Rotated channels of a head; all if not given."""
    layout: Literal["half", "interleaved"] = "half"
    """Which channels form a pair: i and i + width/2 (half), or neighbours (interleaved)."""
    scaling: Scaling | None = None
    """Context-extension scaling; none if not given."""

    def check(self) -> None:
        if self.theta <= 1:
            raise UserError(f"theta {self.theta} is not above 1", where="Rope", fix="use 10000")
        if self.width is not None and (self.width < 2 or self.width % 2):
            raise UserError(
                f"width {self.width} is not an even number of channels",
                where="Rope",
                fix=f"use {max(2, self.width + 1)}",
            )

    def build(self, heads: int, channels: int, value_channels: int, causal: bool) -> nn.Module | None:
        turned = channels if self.width is None else self.width
        if turned > channels:
            raise UserError(f"Rope turns {turned} channels but a head has {channels}", where="relative.width",
                            fix=f"use width {channels - channels % 2}")  # fmt: skip
        if turned % 2:
            raise UserError(f"a head has {channels} channels, an odd number; Rope turns pairs", where="relative",
                            fix=f"use Rope(width={channels - 1})" if channels > 1 else "use fewer heads")  # fmt: skip
        if turned == 2 and isinstance(self.scaling, NTKScaling | DynamicScaling):
            raise UserError(f"{type(self.scaling).__name__} stretches slow pairs and Rope turns one pair only",
                            where="relative.scaling", fix="use LinearScaling(factor=...) or wider heads")  # fmt: skip
        return RopeModule(self, turned)

    def rotate(self, x: Tensor, tables: tuple[Tensor, ...]) -> Tensor:
        cos, sin = (table[:, None] for table in tables)  # (B or 1, 1, T, width/2)
        turned = 2 * cos.shape[-1]
        part = x[..., :turned].to(cos.dtype)
        if self.layout == "half":
            a, b = part.chunk(2, -1)
            out = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = part[..., 0::2], part[..., 1::2]
            out = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        out = out.to(x.dtype)
        return out if turned == x.shape[-1] else torch.cat([out, x[..., turned:]], -1)


class RopeModule(nn.Module):
    """Cosines and sines for the given positions, computed on demand: a stored table would be rounded by a cast."""

    def __init__(self, spec: Rope, width: int) -> None:
        super().__init__()
        self.spec, self.width = spec, width
        self.known: Known = {}

    def forward(self, context: Context, dtype: torch.dtype) -> tuple[Tensor, ...]:
        exact = torch.promote_types(dtype, torch.float32)
        device = context.positions.device
        if isinstance(self.spec.scaling, DynamicScaling):
            frequencies = self.frequencies(context, exact).to(device)
        else:
            frequencies = cached_table(self.known, exact, device, lambda: self.frequencies(context, exact))
        angles = context.positions.to(exact)[..., None] * frequencies  # (B or 1, T, width/2)
        gain = 1.0 if self.spec.scaling is None else self.spec.scaling.gain
        cos, sin = cos_sin(angles)
        return cos * gain, sin * gain

    def frequencies(self, context: Context, dtype: torch.dtype) -> Tensor:
        scaling = self.spec.scaling
        if scaling is None:
            return plain(self.spec.theta, self.width, dtype)
        keys = context.past + context.positions.shape[1]
        if isinstance(scaling, DynamicScaling) and keys > scaling.original:
            if context.past:
                raise UserError(
                    f"DynamicScaling cannot go past {scaling.original} tokens with a cache: old keys would turn",
                    fix=f"use NTKScaling(factor={scaling.factor})",
                )
            return scaling.stretched(self.spec.theta, self.width, dtype, keys)
        return scaling.frequencies(self.spec.theta, self.width, dtype)


def plain(theta: float, width: int, dtype: torch.dtype) -> Tensor:
    """theta^(-2i/width) for i = 0 .. width/2 - 1."""
    return 1.0 / (theta ** (torch.arange(0, width, 2).to(dtype) / width))


def yarn_gain(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor on cosines and sines."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def check_factor(factor: float, where: str, original: int = 1) -> None:
    check_at_least(where, "original", original, 1, fix="give the length it was trained on")
    check_at_least(where, "factor", factor, 1, fix="use 1 or more: it divides positions")

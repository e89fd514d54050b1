"""Time series into tokens: each channel's window is cut into overlapping patches (PatchTST, 2211.14730)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import EmbeddingTable, LinearLayer
from anyformer.core.state import State
from anyformer.errors import UserError, check_at_least, check_fraction
from anyformer.positions.sinusoid import Sinusoid
from anyformer.slots import Embed, Norm, Position
from anyformer.spec import field

EPS = 1e-5  # added to a window's variance, so that a constant window becomes 0


class Series(Embed):
    """Patches of `patch` steps, `stride` apart, of windows (B, length, channels).

    With `channels=None`, as in the paper, each channel is a separate row (channel independence): any number of channels
    may be given, all share the weights, and tokens are (B * channels, patches, D). With a number, the tokens of all
    channels form one sequence, with a learned vector per channel. `scaled` standardises each channel of a window, which
    a `Forecast` head undoes. `repeat` repeats the last value for one more stride, as in the paper; without it the
    oldest steps that fill no patch are dropped. nan is a missing value: it is replaced by the window's mean, and a
    patch of missing values only is padding.
    """

    about: ClassVar[About | None] = About(
        "z = (x - mean x) / sqrt(var x + eps); x_n = z[n S : n S + P] W + p_n, channel by channel", "2211.14730",
        "V (L / S) P D for V channels of L steps",
    )  # fmt: skip
    length: int
    """Steps of a window."""
    channels: int | None = None
    """Channels read as one sequence; each channel is a row of its own if not given."""
    patch: int = 16
    """Steps of a patch."""
    stride: int = 8
    """Stride between patches in steps."""
    scaled: bool = True
    """Whether each window is standardised, which a Forecast head undoes."""
    repeat: bool = True
    """Repeat the last value for one more stride, as PatchTST does."""
    position: Position | None = field(default_factory=Sinusoid)
    """Absolute positions added to the tokens, or null for none."""
    norm: Norm | None = None
    """Norm of the tokens that come out; none if not given."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        for name in ("length", "channels", "patch", "stride"):
            value = getattr(self, name)
            check_at_least("Series", name, value, 1, fix="use 1 or more")
        if self.patch > self.length:
            raise UserError(f"a patch of {self.patch} does not fit {self.length} steps", where="Series.patch",
                            fix=f"use {self.length} or less")  # fmt: skip
        check_fraction("Series", "dropout", self.dropout, fix="use 0.1")
        if self.position is not None and self.position.over(1, 1, 0) != self.position:
            raise UserError(f"a series has no rows and columns for {type(self.position).__name__}",
                            where="Series.position", fix=f"use Learned({self.patches}) or Sinusoid()")  # fmt: skip
        limit = None if self.position is None else self.position.limit
        if limit is not None and limit < self.patches:
            raise UserError(f"{self.patches} patches do not fit {limit} positions", where="Series.position",
                            fix=f"use Learned({self.patches})")  # fmt: skip

    @property
    def patches(self) -> int:
        """Patches of one channel."""
        return (self.length + self.stride * self.repeat - self.patch) // self.stride + 1

    def build(self, width: int) -> nn.Module:
        return SeriesModule(self, width)


@dataclass(frozen=True)
class SeriesContext(Context):
    """The context of windows, with each channel's mean and spread, for a head that answers in the original units."""

    channels: int = 1
    patches: int = 1  # of each channel
    centre: Tensor | None = None  # (B,1,V)
    spread: Tensor | None = None  # (B,1,V)
    window: Tensor | None = None  # (B,length,V) as given


class SeriesModule(nn.Module):
    def __init__(self, spec: Series, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.patch = LinearLayer(spec.patch, width)
        self.channel = None if spec.channels is None else EmbeddingTable(spec.channels, width)
        self.position = None if spec.position is None else spec.position.build(width)
        self.norm = None if spec.norm is None else spec.norm.build(width)

    def layout(
        self, window: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of windows (B, length, channels); `mask` is over tokens."""
        spec = self.spec
        wanted = f"(B, {spec.length}, {'channels' if spec.channels is None else spec.channels}) in floating point"
        if not isinstance(window, Tensor):
            raise UserError(f"a window is {type(window).__name__}", fix=f"expected a tensor {wanted}")
        if window.dim() != 3 or window.shape[1] != spec.length or window.shape[2] != (spec.channels or window.shape[2]):
            raise UserError(f"windows have shape {tuple(window.shape)}", fix=f"expected {wanted}")
        if not window.is_floating_point() or not window.shape[2]:
            raise UserError(f"windows are {tuple(window.shape)} of {window.dtype}", fix=f"expected {wanted}")
        known = ~self.cut(window.isnan()).all(-1)  # (rows,T)
        both: Mask = known if mask is None else (known, *(mask if isinstance(mask, tuple) else (mask,)))
        if positions is None:  # positions are by time, also after missing values
            positions = torch.arange(spec.patches, device=window.device).repeat(spec.channels or 1)[None]
        found = lay_out(known.shape[0], known.shape[1], window.device, mask=both, positions=positions,
                        documents=documents, segments=segments, state=state)  # fmt: skip
        centre, spread = statistics(window) if spec.scaled else (None, None)
        return SeriesContext(
            **vars(found), channels=window.shape[2], patches=spec.patches, centre=centre, spread=spread, window=window
        )

    def forward(self, window: Tensor, *, context: Context) -> Tensor:
        """Windows (B, length, V) to (B * V, patches, D), or (B, V * patches, D), channel by channel."""
        assert isinstance(context, SeriesContext)
        if context.centre is not None and context.spread is not None:
            window = (window - context.centre) / context.spread
        x = self.patch(self.cut(window.nan_to_num()).to(self.patch.weight.dtype))  # (rows,T,D)
        if self.channel is not None:
            x = x + self.channel.weight.repeat_interleave(self.spec.patches, 0)
        if self.position is not None:
            x = x + self.position(context, x.dtype).to(x.dtype)
        x = x if self.norm is None else self.norm(x)
        return F.dropout(x, self.spec.dropout, self.training)

    def cut(self, window: Tensor) -> Tensor:
        """(B, length, V) to patches (rows, T, patch), the newest steps in the last of each channel."""
        spec = self.spec
        if spec.repeat:
            window = torch.cat([window, window[:, -1:].expand(-1, spec.stride, -1)], 1)
        used = spec.patch + (spec.patches - 1) * spec.stride
        pieces = window[:, window.shape[1] - used :].unfold(1, spec.patch, spec.stride)  # (B,N,V,patch)
        pieces = pieces.transpose(1, 2)  # (B,V,N,patch)
        return pieces.flatten(0, 1) if spec.channels is None else pieces.flatten(1, 2)


def statistics(window: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (B,1,V) of each channel over known steps; 0 and sqrt(EPS) if none is known."""
    window = window.to(torch.promote_types(window.dtype, torch.float32))
    known = ~window.isnan()
    count = known.sum(1, keepdim=True).clamp(min=1)
    centre = window.nan_to_num().sum(1, keepdim=True) / count
    off = torch.where(known, window - centre, 0.0)
    return centre, (off.square().sum(1, keepdim=True) / count + EPS).sqrt()


def fill_missing(window: Tensor) -> Tensor:
    """Fill missing steps of (B, T, V) forward from the last known value, else backward from the next; 0 if there is
    none."""
    known, length = ~window.isnan(), window.shape[1]
    steps = torch.arange(length, device=window.device)[None, :, None].expand_as(window)
    before = torch.where(known, steps, -1).cummax(1).values
    after = torch.where(known, steps, length - 1).flip(1).cummin(1).values.flip(1)
    return window.gather(1, torch.where(before >= 0, before, after)).nan_to_num()

"""Audio into tokens: a waveform's log-mel spectrogram is cut into overlapping patches (AST, 2104.01778)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import LinearLayer
from anyformer.core.pytrees import as_tuple
from anyformer.core.state import State
from anyformer.embeds.mel import log_mel
from anyformer.errors import UserError, check_fraction, check_range
from anyformer.positions.grid import Grid
from anyformer.slots import Embed, Norm, Position
from anyformer.spec import field


class Frames(Embed):
    """Patches of `patch` bands x spectra, `stride` apart, of clips at `sample_rate` samples a second.

    A spectrum of `mels` bands is computed every `hop` seconds over `window` seconds; `frames` of them are the longest
    clip, and shorter clips are padded. The log values are normalised as (x - mean) / (2 std), with AST's own
    statistics. `cls` puts a learned class token first, `distill` DeiT's distillation token after it.

    Call the model with waveforms (B, samples) between -1 and 1, and with the lengths (B,) of the clips if they differ:
    `model(waves, lengths)`. A tensor (B, mels, frames) is taken as already normalised spectra.
    """

    about: ClassVar[About | None] = About(
        "x = patch(log(mel |FFT(hann * sharpen(wave))|^2)) W + p", "2104.01778",
        "F (n log n + n mels) + T P^2 D for F spectra of n samples, patches of P x P",
    )  # fmt: skip
    gridded: ClassVar[bool] = True
    sample_rate: int
    """Sample rate of the clips in Hz."""
    frames: int = 1024
    """Spectra of the longest clip."""
    mels: int = 128
    """Mel bands of a spectrum."""
    window: float = 0.025
    """Window length of a spectrum in seconds."""
    hop: float = 0.010
    """Hop length between spectra in seconds."""
    patch: int | tuple[int, int] = 16
    """Bands and spectra of a patch."""
    stride: int | tuple[int, int] = 10
    """Bands and spectra from one patch to the next."""
    cls: bool = True
    """Whether a learned class token comes first."""
    distill: bool = False
    """Whether DeiT's distillation token follows the class token."""
    position: Position | None = field(default_factory=Grid)
    """Absolute positions added to the tokens, or null for none."""
    norm: Norm | None = None
    """Norm of the tokens that come out; none if not given."""
    mean: float = -4.2677393
    """Mean of the log-mel values, subtracted."""
    std: float = 4.5689974
    """Standard deviation of the log-mel values; they are divided by twice that."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        check_range("Frames", "sample_rate", self.sample_rate, 1, fix="use 16000")
        if self.step < 1:
            raise UserError(f"hop {self.hop} s is less than a sample", where="Frames.hop", fix="use 0.01")
        if self.reach < 2:
            raise UserError(f"window {self.window} s is less than 2 samples", where="Frames.window", fix="use 0.025")
        if min(self.cell) < 1:
            raise UserError(f"patch {self.patch} is below 1", where="Frames.patch", fix="use 16")
        if min(self.apart) < 1:
            raise UserError(f"stride {self.stride} is below 1", where="Frames.stride", fix="use 16")
        for name, least in (("mels", self.cell[0]), ("frames", self.cell[1])):
            if getattr(self, name) < least:
                raise UserError(f"{name} {getattr(self, name)} is less than a patch of {least}",
                                where=f"Frames.{name}", fix=f"use {least} or more, or a smaller patch")  # fmt: skip
        if self.std <= 0:
            raise UserError(f"std {self.std} is not above 0", where="Frames.std", fix="leave it out")
        check_fraction("Frames", "dropout", self.dropout, fix="use 0.1")
        if self.distill and not self.cls:
            raise UserError("a distillation token comes with a class token", where="Frames.distill", fix="use cls=True")
        limit = None if self.position is None else self.position.limit
        if limit is not None and limit < self.tokens:
            raise UserError(f"{self.tokens} tokens do not fit {limit} positions", where="Frames", fix="use Grid()")

    @property
    def reach(self) -> int:
        """Window length in samples."""
        return round(self.window * self.sample_rate)

    @property
    def step(self) -> int:
        """Hop length in samples."""
        return round(self.hop * self.sample_rate)

    @property
    def samples(self) -> int:
        """Samples of the longest clip."""
        return self.reach + (self.frames - 1) * self.step

    @property
    def cell(self) -> tuple[int, int]:
        """Bands and spectra of one patch."""
        return (self.patch, self.patch) if isinstance(self.patch, int) else self.patch

    @property
    def apart(self) -> tuple[int, int]:
        """Bands and spectra from one patch to the next."""
        return (self.stride, self.stride) if isinstance(self.stride, int) else self.stride

    @property
    def grid(self) -> tuple[int, int]:
        """Rows (bands) and columns (time) of patches."""
        (high, wide), (down, along) = self.cell, self.apart
        return (self.mels - high) // down + 1, (self.frames - wide) // along + 1

    @property
    def leading(self) -> int:
        """Learned tokens before the patches."""
        return int(self.cls) + int(self.distill)

    @property
    def tokens(self) -> int:
        return self.leading + self.grid[0] * self.grid[1]

    def build(self, width: int) -> nn.Module:
        return FramesModule(self, width)


class FramesModule(nn.Module):
    def __init__(self, spec: Frames, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.patch = LinearLayer(spec.cell[0] * spec.cell[1], width)
        self.lead = nn.Parameter(torch.zeros(spec.leading, width)) if spec.leading else None
        position = spec.position
        self.position = None if position is None else position.over(*spec.grid, spec.leading).build(width)
        self.norm = None if spec.norm is None else spec.norm.build(width)

    def layout(
        self, sound: Tensor, lengths: Tensor | None = None, *, mask: Mask | None = None,
        positions: Tensor | None = None, documents: Tensor | None = None, segments: Tensor | None = None,
        state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of clips; `mask` is over tokens, in addition to the padding implied by `lengths`."""
        check_sound(self.spec, sound, lengths)
        heard = self.heard(sound, lengths)
        both: Mask | None = mask if heard is None else heard if mask is None else (heard, *as_tuple(mask))
        if positions is None:  # positions are by time also after padding, unlike an index among real tokens
            positions = torch.arange(self.spec.tokens, device=sound.device)[None]
        return lay_out(sound.shape[0], self.spec.tokens, sound.device, mask=both, positions=positions,
                       documents=documents, segments=segments, grid=self.spec.grid, state=state)  # fmt: skip

    def heard(self, sound: Tensor, lengths: Tensor | None) -> Tensor | None:
        """(B,T) which tokens begin before the end of their clip; the first patches always do."""
        spec = self.spec
        ready = sound.dim() == 3
        whole = spec.frames if ready else spec.samples
        if lengths is None and sound.shape[-1] == whole:
            return None
        ends = torch.full((sound.shape[0],), sound.shape[-1], device=sound.device) if lengths is None else lengths
        rows, columns = spec.grid
        starts = torch.arange(columns, device=sound.device) * (spec.apart[1] * (1 if ready else spec.step))
        seen = starts < ends[:, None].clamp(min=1)  # (B,columns)
        patches = seen[:, None].expand(-1, rows, -1).flatten(1)  # (B,rows * columns)
        return torch.cat([torch.ones_like(patches[:, :1]).expand(-1, spec.leading), patches], 1)

    def forward(self, sound: Tensor, lengths: Tensor | None = None, *, context: Context) -> Tensor:
        """Clips to (B, T, D): leading tokens, then patches band by band, each band over time."""
        x = self.patch(self.patches(self.spectra(sound, lengths)).to(self.patch.weight.dtype))  # (B,N,D)
        if self.lead is not None:
            x = torch.cat([self.lead.to(x.dtype).expand(x.shape[0], -1, -1), x], 1)
        if self.position is not None:
            x = x + self.position(context, x.dtype).to(x.dtype)
        x = x if self.norm is None else self.norm(x)
        return F.dropout(x, self.spec.dropout, self.training)

    def spectra(self, sound: Tensor, lengths: Tensor | None) -> Tensor:
        """Normalised spectra (B, mels, frames), silent after a clip's end."""
        spec = self.spec
        ready = sound.dim() == 3
        if lengths is not None:
            beyond = torch.arange(sound.shape[-1], device=sound.device) >= lengths[:, None]
            sound = sound.masked_fill(beyond[:, None] if ready else beyond, 0.0)
        sound = F.pad(sound, (0, (spec.frames if ready else spec.samples) - sound.shape[-1]))
        if ready:
            return sound
        found = log_mel(sound, sample_rate=spec.sample_rate, mels=spec.mels, window=spec.reach, hop=spec.step)
        return (found - spec.mean) / (2 * spec.std)

    def patches(self, spectra: Tensor) -> Tensor:
        """(B, mels, frames) to (B, rows * columns, bands * spectra of a patch)."""
        (high, wide), (down, along) = self.spec.cell, self.spec.apart
        return spectra.unfold(1, high, down).unfold(2, wide, along).flatten(3).flatten(1, 2)


def check_sound(spec: Frames, sound: Tensor, lengths: Tensor | None) -> None:
    """Validate a batch of clips and their lengths."""
    ready = isinstance(sound, Tensor) and sound.dim() == 3
    most = spec.frames if ready else spec.samples
    wanted = f"(B, {spec.mels}, frames)" if ready else "(B, samples)"
    if not isinstance(sound, Tensor) or sound.dim() not in (2, 3) or not sound.is_floating_point():
        kind = f"{tuple(sound.shape)} of {sound.dtype}" if isinstance(sound, Tensor) else type(sound).__name__
        raise UserError(f"sound is {kind}", fix="expected waveforms (B, samples) in floating point")
    if (ready and sound.shape[1] != spec.mels) or not 1 <= sound.shape[-1] <= most:
        raise UserError(f"sound has shape {tuple(sound.shape)}",
                        fix=f"expected {wanted} with 1 to {most} of the last")  # fmt: skip
    if lengths is not None and (lengths.shape != sound.shape[:1] or lengths.is_floating_point()):
        raise UserError(f"lengths have shape {tuple(lengths.shape)} and type {lengths.dtype}",
                        fix=f"expected whole numbers ({sound.shape[0]},)")  # fmt: skip

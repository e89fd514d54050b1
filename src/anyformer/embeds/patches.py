"""Images into tokens: cut into patches, each patch flattened and multiplied by one matrix (2010.11929)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.state import State
from anyformer.errors import UserError
from anyformer.positions.grid import Grid
from anyformer.slots import Embed, Norm, Position
from anyformer.spec import field


class Patches(Embed):
    """Patches of `patch` x `patch` pixels of an image (H, W) = `size`; other sizes resample the positions.

    `cls` puts a learned class token first, `distill` DeiT's second one after it; `registers` are learned tokens
    without a position behind those. `position=None` leaves positions out.
    """

    size: int | tuple[int, int]
    patch: int
    channels: int = 3
    cls: bool = True
    distill: bool = False
    registers: int = 0
    position: Position | None = field(default_factory=Grid)
    norm: Norm | None = None
    bias: bool = True
    dropout: float = 0.0

    def check(self) -> None:
        rows, columns = self.pixels
        if self.patch < 1 or rows % self.patch or columns % self.patch:
            near = max(1, round(rows / max(1, self.patch))) * max(1, self.patch)
            raise UserError(f"size {rows} x {columns} does not cut into {self.patch}-pixel patches", where="Patches",
                            fix=f"try size {near}")  # fmt: skip
        if self.channels < 1 or self.registers < 0:
            raise UserError(
                f"channels {self.channels} or registers {self.registers} is too small",
                where="Patches",
                fix="use channels 3",
            )
        if self.distill and not self.cls:
            raise UserError(
                "a distillation token comes with a class token", where="Patches.distill", fix="use cls=True"
            )

    @property
    def pixels(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at the size trained on."""
        return self.pixels[0] // self.patch, self.pixels[1] // self.patch

    @property
    def leading(self) -> int:
        """Learned tokens before the patches that have positions."""
        return int(self.cls) + int(self.distill)

    def build(self, width: int) -> nn.Module:
        return PatchEmbedding(self, width)


class PatchEmbedding(nn.Module):
    def __init__(self, spec: Patches, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.patch = nn.Linear(spec.channels * spec.patch**2, width, bias=spec.bias)
        self.lead = nn.Parameter(torch.zeros(spec.leading, width)) if spec.leading else None
        self.register = nn.Parameter(torch.zeros(spec.registers, width)) if spec.registers else None
        position = spec.position
        if isinstance(position, Grid):
            position = position.over(*spec.grid, spec.leading)
        self.position = None if position is None else position.build(width)
        self.norm = None if spec.norm is None else spec.norm.build(width)

    def layout(
        self, pixels: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """What is known of these images (B, channels, H, W) before any compute; `mask` is over tokens."""
        spec, size = self.spec, self.spec.patch
        if pixels.dim() != 4 or pixels.shape[1] != spec.channels or not pixels.is_floating_point():
            raise UserError(f"pixels have shape {tuple(pixels.shape)} and type {pixels.dtype}",
                            fix=f"expected (B, {spec.channels}, H, W) in floating point")  # fmt: skip
        if pixels.shape[2] % size or pixels.shape[3] % size:
            raise UserError(f"an image of {pixels.shape[2]} x {pixels.shape[3]} does not cut into {size}-pixel patches",
                            fix=f"resize it to multiples of {size}")  # fmt: skip
        grid = (pixels.shape[2] // size, pixels.shape[3] // size)
        if self.spec.position is not None and not isinstance(self.spec.position, Grid) and self.spec.registers:
            raise UserError("register tokens have no place among other positions than Grid", fix="use position=Grid()")
        length = spec.leading + spec.registers + grid[0] * grid[1]
        return lay_out(pixels.shape[0], length, pixels.device, mask=mask, positions=positions, documents=documents,
                       segments=segments, grid=grid, state=state)  # fmt: skip

    def forward(self, pixels: Tensor, *, context: Context) -> Tensor:
        """Images (B, channels, H, W) to (B, T, D), leading tokens first, patches row by row."""
        assert context.grid is not None
        x = self.patch(cut(pixels, self.spec.patch))  # (B,N,D)
        batch = x.shape[0]
        if self.lead is not None:
            x = torch.cat([self.lead.to(x.dtype).expand(batch, -1, -1), x], 1)
        if self.position is not None:
            x = x + self.position(context, x.dtype).to(x.dtype)
        if self.register is not None:
            at, register = self.spec.leading, self.register.to(x.dtype).expand(batch, -1, -1)
            x = torch.cat([x[:, :at], register, x[:, at:]], 1)
        x = x if self.norm is None else self.norm(x)
        return F.dropout(x, self.spec.dropout, self.training)


def cut(pixels: Tensor, size: int) -> Tensor:
    """Patches of an image, each flattened channel by channel: (B, channels, H, W) to (B, N, channels * size²)."""
    batch, channels, height, width = pixels.shape
    blocks = pixels.reshape(batch, channels, height // size, size, width // size, size)
    return blocks.permute(0, 2, 4, 1, 3, 5).reshape(batch, (height // size) * (width // size), channels * size * size)

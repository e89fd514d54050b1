"""Images into tokens: cut into patches, each patch flattened and multiplied by one matrix (2010.11929)."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import LinearLayer
from anyformer.core.state import State
from anyformer.errors import UserError, check_fraction, check_range
from anyformer.positions.grid import Grid
from anyformer.slots import Embed, Norm, Position
from anyformer.spec import field


class Patches(Embed):
    """Patches of `patch` pixels a side (or rows, columns) of an image (H, W) = `size`; other sizes resample positions.

    `cls` puts a learned class token first, `distill` DeiT's distillation token after it; `registers` are further
    learned tokens without a position. `position=None` omits positions. With `masked`, the model takes an optional
    second input (B, N), True for patches to replace by a learned mask token.
    """

    about: ClassVar[About | None] = About("x_n = W pixels(patch n) + P[n], class token first", "2010.11929", "N D p^2")

    gridded: ClassVar[bool] = True
    size: int | tuple[int, int]
    """Height and width of the images."""
    patch: int | tuple[int, int]
    """Height and width of a patch."""
    channels: int = 3
    """Colour channels of the images."""
    cls: bool = True
    """Whether a learned class token comes first."""
    distill: bool = False
    """Whether DeiT's distillation token follows the class token."""
    registers: int = 0
    """Number of register tokens, learned and without a position, after the class token."""
    position: Position | None = field(default_factory=Grid)
    """Absolute positions added to the tokens, or null for none."""
    norm: Norm | None = None
    """Norm of the tokens that come out; none if not given."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""
    masked: bool = False
    """Whether hidden patches can be replaced by a learned mask token (masked image modelling)."""

    def check(self) -> None:
        rows, columns = self.pixels
        high, wide = self.cell
        if high < 1 or wide < 1 or rows < 1 or columns < 1 or rows % high or columns % wide:
            near = max(1, round(rows / max(1, high))) * max(1, high)
            raise UserError(f"size {rows} x {columns} does not cut into {high} x {wide} pixel patches", where="Patches",
                            fix=f"try size {near}")  # fmt: skip
        check_range("Patches", "channels", self.channels, 1, fix="use 3")
        check_range("Patches", "registers", self.registers, 0, fix="use 0 for none")
        check_fraction("Patches", "dropout", self.dropout, fix="use 0.1")
        placed = self.leading + self.grid[0] * self.grid[1]
        if self.position is not None and self.position.limit is not None and self.position.limit < placed:
            raise UserError(
                f"{placed} tokens do not fit {self.position.limit} positions", where="Patches", fix="use Grid()"
            )
        if self.registers and self.position is not None and not isinstance(self.position, Grid):
            raise UserError(
                "register tokens have no place among other positions than Grid", where="Patches", fix="use Grid()"
            )
        if self.distill and not self.cls:
            raise UserError(
                "a distillation token comes with a class token", where="Patches.distill", fix="use cls=True"
            )

    @property
    def pixels(self) -> tuple[int, int]:
        return (self.size, self.size) if isinstance(self.size, int) else self.size

    @property
    def cell(self) -> tuple[int, int]:
        """Height and width of one patch in pixels."""
        return (self.patch, self.patch) if isinstance(self.patch, int) else self.patch

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at the size trained on."""
        return self.pixels[0] // self.cell[0], self.pixels[1] // self.cell[1]

    @property
    def leading(self) -> int:
        """Number of leading learned tokens that have positions."""
        return int(self.cls) + int(self.distill)

    def build(self, width: int) -> nn.Module:
        return PatchesModule(self, width)


class PatchesModule(nn.Module):
    def __init__(self, spec: Patches, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.patch = LinearLayer(spec.channels * spec.cell[0] * spec.cell[1], width, bias=spec.bias)
        self.lead = nn.Parameter(torch.zeros(spec.leading, width)) if spec.leading else None
        self.register = nn.Parameter(torch.zeros(spec.registers, width)) if spec.registers else None
        position = spec.position
        self.position = None if position is None else position.over(*spec.grid, spec.leading).build(width)
        self.norm = None if spec.norm is None else spec.norm.build(width)
        self.mask = nn.Parameter(torch.zeros(width)) if spec.masked else None

    def layout(
        self, pixels: Tensor, hidden: Tensor | None = None, *, mask: Mask | None = None,
        positions: Tensor | None = None, documents: Tensor | None = None, segments: Tensor | None = None,
        state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of images (B, channels, H, W); `mask` is over tokens."""
        spec, (high, wide) = self.spec, self.spec.cell
        if not isinstance(pixels, Tensor):
            raise UserError(f"pixels are {type(pixels).__name__}", fix="give a tensor (B, channels, H, W)")
        if pixels.dim() != 4 or pixels.shape[1] != spec.channels or not pixels.is_floating_point():
            raise UserError(f"pixels have shape {tuple(pixels.shape)} and type {pixels.dtype}",
                            fix=f"expected (B, {spec.channels}, H, W) in floating point")  # fmt: skip
        if pixels.shape[2] % high or pixels.shape[3] % wide:
            raise UserError(
                f"an image of {pixels.shape[2]} x {pixels.shape[3]} does not cut into {high} x {wide} pixel patches",
                fix=f"resize it to multiples of {high if high == wide else (high, wide)}",
            )
        grid = (pixels.shape[2] // high, pixels.shape[3] // wide)
        check_hidden(hidden, spec, (pixels.shape[0], grid[0] * grid[1]))
        length = spec.leading + spec.registers + grid[0] * grid[1]
        limit = None if spec.position is None else spec.position.limit
        if limit is not None and length > limit:
            raise UserError(f"{length} tokens do not fit {limit} positions", fix="use a smaller image or Grid()")
        return lay_out(pixels.shape[0], length, pixels.device, mask=mask, positions=positions, documents=documents,
                       segments=segments, grid=grid, state=state)  # fmt: skip

    def forward(self, pixels: Tensor, hidden: Tensor | None = None, *, context: Context) -> Tensor:
        """Images (B, channels, H, W) to (B, T, D), leading tokens first, patches row by row; `hidden` is (B, N)."""
        assert context.grid is not None
        x = self.patch(cut(pixels, self.spec.cell).to(self.patch.weight.dtype))  # (B,N,D)
        if hidden is not None and self.mask is not None:
            x = torch.where(hidden[..., None], self.mask.to(x.dtype), x)
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


def check_hidden(hidden: Tensor | None, spec: Patches, shape: tuple[int, int]) -> None:
    """Validate the mask of hidden patches."""
    if hidden is None:
        return
    if not spec.masked:
        raise UserError("patches are hidden but nothing stands in their place", fix="use Patches(masked=True)")
    if not isinstance(hidden, Tensor) or hidden.dtype != torch.bool or tuple(hidden.shape) != shape:
        got = f"{tuple(hidden.shape)} of {hidden.dtype}" if isinstance(hidden, Tensor) else type(hidden).__name__
        raise UserError(f"hidden patches are {got}", fix=f"expected {shape} of torch.bool")


def paste(patches: Tensor, grid: tuple[int, int], size: int | tuple[int, int]) -> Tensor:
    """The reverse of `cut`: (B, N, channels * size²) to (B, channels, H, W), where N = rows x columns is the `grid`."""
    high, wide = (size, size) if isinstance(size, int) else size
    batch, (rows, columns) = patches.shape[0], grid
    blocks = patches.reshape(batch, rows, columns, -1, high, wide)
    return blocks.permute(0, 3, 1, 4, 2, 5).reshape(batch, -1, rows * high, columns * wide)


def cut(pixels: Tensor, size: int | tuple[int, int]) -> Tensor:
    """Patches of an image, each flattened channel by channel: (B, channels, H, W) to (B, N, channels * size²)."""
    high, wide = (size, size) if isinstance(size, int) else size
    batch, channels, height, width = pixels.shape
    rows, columns = height // high, width // wide
    blocks = pixels.reshape(batch, channels, rows, high, columns, wide)
    return blocks.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * high * wide)

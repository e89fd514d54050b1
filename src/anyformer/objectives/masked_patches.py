"""Masked image modelling: reconstruct masked patches (SimMIM, 2111.09886)."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anyformer.embeds.patches import cut
from anyformer.errors import UserError
from anyformer.objectives.batch import Batch
from anyformer.objectives.draw import EVALUATION, Draw
from anyformer.objectives.objective import BatchSource, Objective, full, with_extra

FLAT = 1e-6  # added to the variance, so that a patch without contrast is not divided by zero


class MaskedPatches(Objective):
    """A share `rate` of an image's patches is hidden; the loss is the mean squared error of their pixels alone.

    With `normalise` each patch is asked for with its own mean and deviation taken out (MAE, 2111.06377): what is left
    to rebuild is structure, and answering with the mean alone, that is with zeros, has a loss of 1.
    """

    rate: float = 0.6
    """Share of the patches that are hidden."""
    normalise: bool = True
    """Whether each patch's own mean and deviation are taken out of what is asked for."""
    patch: tuple[int, int] | None = None
    """Height and width of a patch: those of the network, filled in when it is known."""

    def check(self) -> None:
        if not 0 < self.rate < 1:
            raise UserError(f"rate {self.rate} is outside (0, 1)", where="MaskedPatches", fix="use 0.6")

    @property
    def cell(self) -> tuple[int, int]:
        if self.patch is None:
            raise UserError("no patch size given", where="MaskedPatches.patch", fix="give the network's")
        return self.patch

    def corrupt(self, batch: Batch, draw: Draw, source: BatchSource) -> Batch:
        """Masked pixels are also zeroed in the input, so that they cannot leak."""
        pixels = batch.inputs[0]  # (B,C,H,W)
        hidden = hide_patches(pixels, batch.rows, draw, self.cell, self.rate)
        targets = self.targets(pixels).masked_fill(~hidden[..., None], torch.nan)
        seen = pixels.masked_fill(spread(hidden, pixels.shape[2:], self.cell), 0.0)
        return replace(batch, inputs=(seen, hidden), targets=targets)

    def targets(self, pixels: Tensor) -> Tensor:
        """The target of every patch, (B,N,values)."""
        patches = cut(pixels, self.cell)
        return normalise_patches(patches) if self.normalise else patches

    def weight(self, batch: Batch) -> int:
        return int((~torch.isnan(batch.targets[..., 0])).sum())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        out = model(*batch.inputs, **batch.named)
        return with_extra(patch_errors(out.logits, batch.targets).sum(), out.losses, self.known_weight(batch))

    def row_losses(self, output: Any, batch: Batch) -> Tensor:
        hidden = (~torch.isnan(batch.targets[..., 0])).sum(1).clamp(min=1)
        return patch_errors(output.logits, batch.targets).sum(1) / hidden


def normalise_patches(patches: Tensor) -> Tensor:
    """Patches (...,values), each normalised to mean 0 and variance 1."""
    mean, variance = patches.mean(-1, keepdim=True), patches.var(-1, keepdim=True, unbiased=False)
    return (patches - mean) / (variance + FLAT).sqrt()


def hide_patches(pixels: Tensor, rows: Tensor, draw: Draw, cell: tuple[int, int], rate: float) -> Tensor:
    """A uniformly random mask of patches (B,N), with the same number in every image.

    In evaluation the mask is seeded by the pixels, so that an image's score does not depend on its row number.
    """
    count = (pixels.shape[2] // cell[0]) * (pixels.shape[3] // cell[1])
    most = min(count - 1, max(1, round(rate * count)))
    hidden = np.zeros((len(pixels), count), bool)
    numbers = [zlib.crc32(image.numpy().tobytes()) for image in pixels] if draw == EVALUATION else rows.tolist()
    for row, number in enumerate(numbers):
        hidden[row, draw.generator(number).permutation(count)[:most]] = True
    return torch.from_numpy(hidden)


def spread(hidden: Tensor, size: torch.Size, cell: tuple[int, int]) -> Tensor:
    """Patches (B,N) as a mask over pixels, (B,1,H,W)."""
    grid = hidden.reshape(len(hidden), 1, size[0] // cell[0], size[1] // cell[1])
    return grid.repeat_interleave(cell[0], 2).repeat_interleave(cell[1], 3)


def patch_errors(rebuilt: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of each patch (B,N), 0 if it was not masked (nan targets)."""
    asked = ~torch.isnan(targets)
    errors = torch.where(asked, full(rebuilt) - full(targets).nan_to_num(), 0.0).square()
    return errors.mean(-1)

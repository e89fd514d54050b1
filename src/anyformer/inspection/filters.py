"""What the patch embedding looks for: its filters, and their principal components (2010.11929, figure 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anyformer.embeds.patches import Patches, PatchesModule
from anyformer.errors import UserError

if TYPE_CHECKING:
    from anyformer.core.init import Init

COUNT = 28  # as many as the paper shows


@dataclass(frozen=True)
class FilterComponents:
    """The `count` directions along which the D filters of a patch embedding differ most, strongest first.

    `components` are orthonormal. The sign of a principal component means nothing; here its largest entry is positive,
    so that two runs give the same picture. `explained` is each one's share of the filters' variance, and
    `coordinates[d, k]` says how much of component k is in filter d, the mean filter taken off.
    """

    components: Tensor  # (K, channels, rows, columns)
    explained: Tensor  # (K,)
    coordinates: Tensor  # (D, K)
    mean: Tensor  # (channels, rows, columns)

    def image(self, *, columns: int = 7, gap: int = 1) -> NDArray[np.uint8]:
        """The components side by side, (rows, columns, 3) in 0 to 255; each has its own scale, 0 is mid-grey."""
        return tile_filters(self.components, columns=columns, gap=gap)


def filter_components(model: nn.Module, count: int = COUNT) -> FilterComponents:
    """Principal components of the patch filters of any network that cuts images into patches.

    >>> from anyformer.presets import preset
    >>> found = filter_components(preset("vit-b16-tiny").build(seed=0))
    >>> found.components.shape, bool(found.explained.sum() <= 1)
    (torch.Size([28, 3, 4, 4]), True)
    """
    if count < 1:
        raise UserError(f"{count} components are none", where="filters", fix=f"use {COUNT}")
    return components_of(patch_filters(model), count)


def components_of(filters: Tensor, count: int = COUNT) -> FilterComponents:
    """The same of filters (D, channels, rows, columns); there are at most as many as filters or as pixels."""
    flat = filters.detach().double().cpu().flatten(1)  # (D,P)
    mean = flat.mean(0)
    _, strengths, directions = torch.linalg.svd(flat - mean, full_matrices=False)  # (K',), (K',P)
    kept = directions[:count]
    largest = kept.gather(1, kept.abs().argmax(1, keepdim=True))  # (K,1)
    kept = kept * torch.where(largest < 0, -1.0, 1.0)
    variance = strengths.square()
    # Equal filters have no variance at all: nothing is explained, rather than 0 / 0.
    explained = variance[:count] / variance.sum().clamp_min(torch.finfo(variance.dtype).tiny)
    return FilterComponents(
        components=kept.unflatten(1, filters.shape[1:]), explained=explained, coordinates=(flat - mean) @ kept.mT,
        mean=mean.unflatten(0, filters.shape[1:]),
    )  # fmt: skip


def patch_filters(model: nn.Module) -> Tensor:
    """The filters themselves, (D, channels, rows, columns): row d of the matrix that a patch is multiplied by."""
    embed = patch_embedding(model)
    return embed.patch.weight.detach().unflatten(1, (embed.spec.channels, *embed.spec.cell))


def patch_embedding(model: nn.Module) -> PatchesModule:
    """The first patch embedding of a network, wherever it stands."""
    found = find_patch_embedding(model)
    if found is None:
        raise UserError("this network does not cut images into patches", where="filters",
                        fix="give a vision Transformer, such as one trained with --model vit-s16")  # fmt: skip
    return found


def find_patch_embedding(model: nn.Module) -> PatchesModule | None:
    return next((module for module in model.modules() if isinstance(module, PatchesModule)), None)


def untrained_filters(model: nn.Module, *, seed: int = 0) -> Tensor:
    """The filters that the same network started from, or would with this seed: random, (D, channels, rows, columns)."""
    from anyformer.core.model import Model
    from anyformer.core.stack import Stack

    embed = patch_embedding(model)
    spec: Patches = embed.spec
    fresh = Model(embed=spec, stack=Stack(width=embed.patch.out_features, depth=0), init=scheme_of(model))
    return patch_filters(fresh.build(seed=seed))


def scheme_of(model: nn.Module) -> Init:
    """How the network was initialised; the outermost part decides for all inside it."""
    from anyformer.core.model import ModelModule, Seq2SeqModule

    networks = (module for module in model.modules() if isinstance(module, ModelModule | Seq2SeqModule))
    return next((network.spec.init for network in networks), "gpt2")


def tile_filters(filters: Tensor, *, columns: int = 7, gap: int = 1, scale: float | None = None) -> NDArray[np.uint8]:
    """Filters (K, 1 or 3, rows, columns) side by side as one RGB image; 0 is mid-grey, the gap white.

    `scale` is the value drawn at full strength; without it each filter is drawn at its own.
    """
    shown = filters.detach().float().cpu()
    shown = shown.expand(-1, 3, -1, -1) if shown.shape[1] == 1 else shown[:, :3]
    top = shown.abs().amax((1, 2, 3), keepdim=True) if scale is None else torch.tensor(scale)
    levels = (127.5 + 127.5 * shown / top.clamp_min(1e-12)).clamp(0, 255).round().byte().permute(0, 2, 3, 1).numpy()
    count, high, wide, _ = levels.shape
    down, along = -(-count // columns), min(columns, count)
    page = np.full((down * (high + gap) - gap, along * (wide + gap) - gap, 3), 255, np.uint8)
    for i, level in enumerate(levels):
        row, column = divmod(i, columns)
        page[row * (high + gap) :, column * (wide + gap) :][:high, :wide] = level
    return page

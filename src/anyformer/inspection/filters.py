"""The filters of the patch embedding, and their principal components (2010.11929, figure 7)."""

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

COUNT = 28  # as in the paper


@dataclass(frozen=True)
class FilterComponents:
    """The first `count` principal components of the D filters of a patch embedding.

    `components` are orthonormal. The sign of a principal component is arbitrary; here its largest entry is positive,
    for reproducible images. `explained` is the explained variance ratio, and `coordinates[d, k]` the coefficient of
    component k in filter d after subtracting the mean filter.
    """

    components: Tensor  # (K, channels, rows, columns)
    explained: Tensor  # (K,)
    coordinates: Tensor  # (D, K)
    mean: Tensor  # (channels, rows, columns)

    def image(self, *, columns: int = 7, gap: int = 1) -> NDArray[np.uint8]:
        """The components as one tiled RGB image, 0 to 255; each has its own scale, 0 is mid-grey."""
        return tile_filters(self.components, columns=columns, gap=gap)


def filter_components(model: nn.Module, count: int = COUNT) -> FilterComponents:
    """Principal components of the patch filters of any network with a patch embedding.

    >>> from anyformer.presets import preset
    >>> found = filter_components(preset("vit-b16-tiny").build(seed=0))
    >>> found.components.shape, bool(found.explained.sum() <= 1)
    (torch.Size([28, 3, 4, 4]), True)
    """
    if count < 1:
        raise UserError(f"{count} components are none", where="filters", fix=f"use {COUNT}")
    return components_of(patch_filters(model), count)


def components_of(filters: Tensor, count: int = COUNT) -> FilterComponents:
    """Principal components of filters (D, channels, rows, columns); at most as many as filters or as pixels."""
    flat = filters.detach().double().cpu().flatten(1)  # (D,P)
    mean = flat.mean(0)
    _, strengths, directions = torch.linalg.svd(flat - mean, full_matrices=False)  # (K',), (K',P)
    kept = directions[:count]
    largest = kept.gather(1, kept.abs().argmax(1, keepdim=True))  # (K,1)
    kept = kept * torch.where(largest < 0, -1.0, 1.0)
    variance = strengths.square()
    # Equal filters have no variance: the ratios are 0, not 0 / 0.
    explained = variance[:count] / variance.sum().clamp_min(torch.finfo(variance.dtype).tiny)
    return FilterComponents(
        components=kept.unflatten(1, filters.shape[1:]), explained=explained, coordinates=(flat - mean) @ kept.mT,
        mean=mean.unflatten(0, filters.shape[1:]),
    )  # fmt: skip


def patch_filters(model: nn.Module) -> Tensor:
    """The filters, (D, channels, rows, columns): row d of the patch embedding's weight."""
    embed = patch_embedding(model)
    return embed.patch.weight.detach().unflatten(1, (embed.spec.channels, *embed.spec.cell))


def patch_embedding(model: nn.Module) -> PatchesModule:
    """The first patch embedding of a network, wherever it is."""
    found = find_patch_embedding(model)
    if found is None:
        raise UserError("this network does not cut images into patches", where="filters",
                        fix="give a vision Transformer, such as one trained with --model vit-s16")  # fmt: skip
    return found


def find_patch_embedding(model: nn.Module) -> PatchesModule | None:
    return next((module for module in model.modules() if isinstance(module, PatchesModule)), None)


def untrained_filters(model: nn.Module, *, seed: int = 0) -> Tensor:
    """Freshly initialised filters (D, channels, rows, columns) of the same network with this seed."""
    from anyformer.core.model import Model
    from anyformer.core.stack import Stack

    embed = patch_embedding(model)
    spec: Patches = embed.spec
    fresh = Model(embed=spec, stack=Stack(width=embed.patch.out_features, depth=0), init=scheme_of(model))
    return patch_filters(fresh.build(seed=seed))


def scheme_of(model: nn.Module) -> Init:
    """The initialisation scheme of the network, that of its outermost part."""
    from anyformer.core.model import ModelModule, Seq2SeqModule

    networks = (module for module in model.modules() if isinstance(module, ModelModule | Seq2SeqModule))
    return next((network.spec.init for network in networks), "gpt2")


def tile_filters(filters: Tensor, *, columns: int = 7, gap: int = 1, scale: float | None = None) -> NDArray[np.uint8]:
    """Filters (K, 1 or 3, rows, columns) tiled in one RGB image; 0 is mid-grey, gaps are white.

    `scale` is the value drawn at full intensity; by default the maximum of each filter.
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

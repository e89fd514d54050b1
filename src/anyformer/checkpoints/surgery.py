"""Rewriting a trained network for other inputs than it was trained on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anyformer.core.building import with_memory
from anyformer.embeds.patches import Patches
from anyformer.errors import UserError
from anyformer.kernels.quantise import check_whole
from anyformer.positions.grid import Grid, GridModule, resize
from anyformer.spec import replace_in


def resize_images(spec: Any, model: nn.Module, size: int | tuple[int, int]) -> tuple[Any, Any]:
    """The same network for images of another size (H, W): its learned grid of positions is resampled bicubically.

    All other weights are copied. The size it already has gives back the very same spec and model. A network resamples
    by itself when it meets an image of another size; this does it once and for all, for training on or for export.

    >>> from anyformer import preset
    >>> spec, model = resize_images(preset("vit-b16-tiny"), preset("vit-b16-tiny").build(seed=0), 64)
    >>> model(torch.zeros(1, 3, 64, 64)).hidden.shape  # 16 x 16 patches of 4 pixels and a class token
    torch.Size([1, 257, 96])
    """
    check_whole(model, "image size", "change")
    found = {path: part for path, part in spec.walk() if isinstance(part, Patches)}
    if not found:
        raise UserError("the network takes no images", where="image size", fix="give a model whose embed is Patches")
    for path, part in found.items():
        if part.position is not None and not isinstance(part.position, Grid):
            raise UserError(f"{type(part.position).__name__} positions have no grid to resample", where=path,
                            fix="use position=Grid()")  # fmt: skip
    wanted = (size, size) if isinstance(size, int) else tuple(size)
    if all(part.pixels == wanted for part in found.values()):
        return spec, model
    changed: Any = replace_in(spec, {f"{path}.size": size for path in found})
    first = next(model.parameters())
    empty = changed.build(device="meta", dtype=first.dtype)
    new = with_memory(changed, empty, first.device, first.dtype).train(model.training)
    before, after = grids(model), grids(new)
    with torch.no_grad():
        for (name, old), parameter in zip(model.named_parameters(), new.parameters(), strict=True):
            if name in before:
                grid = before[name]
                parameter.copy_(resize(old, grid.grid, after[name].grid, grid.extra, grid.resample))
            else:
                parameter.copy_(old)
    for old, parameter in zip(model.parameters(), new.parameters(), strict=True):
        parameter.requires_grad_(old.requires_grad)
    return changed, new


def grids(model: nn.Module) -> dict[str, GridModule]:
    """Every table of grid positions, by the name of its parameter."""
    return {f"{path}.table.weight": part for path, part in model.named_modules() if isinstance(part, GridModule)}

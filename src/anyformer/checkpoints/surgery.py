"""Adapting a trained network to another image size or fewer layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.building import with_memory
from anyformer.embeds.patches import Patches
from anyformer.errors import UserError
from anyformer.kernels.quantise import check_whole
from anyformer.positions.grid import Grid, GridModule, resize
from anyformer.spec import replace_in


def resize_images(spec: Any, model: nn.Module, size: int | tuple[int, int]) -> tuple[Any, Any]:
    """The same network for images of another size (H, W): its learned position grid is resampled bicubically.

    All other weights are copied. For its current size the same spec and model are returned. A network also resamples on
    the fly for images of another size; this makes it permanent, for further training or export.

    >>> from anyformer import preset
    >>> spec, model = resize_images(preset("vit-b16-tiny"), preset("vit-b16-tiny").build(seed=0), 64)
    >>> model.before_head(torch.zeros(1, 3, 64, 64)).hidden.shape  # 16 x 16 patches of 4 pixels and a class token
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


LAYER = re.compile(r"(.*\bblocks\.)(\d+)(\..*)")  # a layer's weight: prefix, layer number, rest


def spread_layers(weights: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Weights for a shallower network with the parameters `names`: its layers are the first, the last and those evenly
    spaced between, as DistilBERT takes them from BERT. For equal depth nothing changes.

    >>> deep = {f"stack.blocks.{layer}.feed.weight": torch.tensor(layer) for layer in range(12)}
    >>> taken = spread_layers(deep, [f"stack.blocks.{layer}.feed.weight" for layer in range(6)])
    >>> [int(weight) for weight in taken.values()]
    [0, 2, 4, 7, 9, 11]
    """
    deep, wanted = count_layers(weights), count_layers(names)
    taken: dict[str, Tensor] = {}
    for name, value in weights.items():
        found = LAYER.match(name)
        if found is None:
            taken[name] = value
            continue
        path, layer, rest = found[1], int(found[2]), found[3]
        for place, picked in enumerate(pick_layers(deep[path], min(deep[path], wanted[path]))):
            if picked == layer:
                taken[f"{path}{place}{rest}"] = value
    return taken


def count_layers(names: Iterable[str]) -> Counter[str]:
    """Number of layers by the path prefix of their numbers."""
    layers = {(found[1], found[2]) for name in names if (found := LAYER.match(name))}
    return Counter(path for path, _ in layers)


def pick_layers(deep: int, shallow: int) -> list[int]:
    """Indices of the layers that a network of `shallow` layers takes from one of `deep` layers."""
    if shallow < 2:
        return [0][:shallow]
    return [round(layer * (deep - 1) / (shallow - 1)) for layer in range(shallow)]


def grids(model: nn.Module) -> dict[str, GridModule]:
    """Every table of grid positions, by the name of its parameter."""
    return {f"{path}.table.weight": part for path, part in model.named_modules() if isinstance(part, GridModule)}

"""Selection of heads for pruning: the least important ones that can be removed."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import nn

from anyformer.core.head_names import HeadName, LayerName, named_layers
from anyformer.errors import UserError
from anyformer.inspection.head_importance import HeadImportance
from anyformer.mixers.attention import Attention
from anyformer.mixers.cross import Cross


def weakest_heads(importance: HeadImportance, model: nn.Module, share: float) -> list[HeadName]:
    """The least important heads, at most the fraction `share` of all.

    Every layer keeps a head, and heads that share keys and values go together, as `prune` requires.
    """
    if not 0 < share < 1:
        raise UserError(f"a share of {share:g} is not between 0 and 1", where="heads", fix="use 0.25")
    units = removable(model)
    count = sum(len(heads) for heads in units)
    left: dict[LayerName, int] = defaultdict(int)
    for heads in units:
        left[heads[0].layer_name] += 1
    room, gone = int(share * count), []  # type: int, list[HeadName]
    for heads in sorted(units, key=lambda heads: sum(importance.change[head] for head in heads)):
        layer = heads[0].layer_name
        if left[layer] > 1 and len(heads) <= room:
            left[layer] -= 1
            room -= len(heads)
            gone += heads
    if not gone:
        raise UserError(
            f"{share:.0%} of {count} heads is not one that can go", where="heads", fix="give a larger share"
        )
    return sorted(gone)


def removable(model: nn.Module) -> list[list[HeadName]]:
    """Attention heads in removable units: single heads, or groups that share keys and values."""
    found: list[list[HeadName]] = []
    for name, _, mixer in named_layers(model):
        part: Any = mixer
        if type(getattr(part, "spec", None)) in (Attention, Cross):
            for group in range(part.sizes.groups):
                first = group * part.sizes.per_group
                found.append([HeadName(*name, head) for head in range(first, first + part.sizes.per_group)])
    return found

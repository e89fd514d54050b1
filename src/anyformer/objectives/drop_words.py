"""Word dropout: mask random tokens of training texts, so that no single one decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anyformer.objectives.batch import Batch


def drop_words(batch: Batch, share: float, generator: torch.Generator) -> Batch:
    """Mask a fraction of the token ids like padding; other inputs are unchanged."""
    mask = batch.named.get("mask")
    if not share or mask is None:
        return batch
    if isinstance(mask, tuple):  # of a joint sequence, one per part
        kept: Any = tuple(drop(part, given, share, generator)
                          for part, given in zip(mask, batch.inputs, strict=True))  # fmt: skip
    else:
        kept = drop(mask, batch.inputs[0], share, generator)
    return replace(batch, named=batch.named | {"mask": kept})


def drop(mask: Any, given: Any, share: float, generator: torch.Generator) -> Any:
    """The mask of one input with random tokens removed, if the input is ids (B,T)."""
    is_ids = isinstance(given, Tensor) and given.dim() == 2 and not given.is_floating_point()
    if not is_ids or not isinstance(mask, Tensor) or mask.shape != given.shape:
        return mask
    return mask & (torch.rand(mask.shape, generator=generator) >= share)

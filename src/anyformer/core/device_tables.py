"""Small constant tables, cached per dtype and device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Known = dict[tuple[torch.dtype, torch.device], Tensor]


def cached_table(known: Known, dtype: torch.dtype, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
    """The result of `make`, cached on the device: a host-to-device copy in every pass would prevent CUDA graph capture.

    Compiled code recomputes it.
    """
    if torch.compiler.is_compiling():
        return make().to(device)
    key = dtype, device
    if key not in known:
        with torch.inference_mode(False):  # it may serve training later
            found = make().to(device)
        if type(found) is not Tensor:  # a fake tensor, while only shapes are traced
            return found
        known[key] = found
    return known[key]


def cos_sin(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines. For compiled training on a GPU they are one opaque operation: the compiler thinks them cheap
    and
    would recompute them for every element they are multiplied with."""
    if torch.compiler.is_compiling() and angles.is_cuda and torch.is_grad_enabled():
        cos, sin = cos_sin_once(angles)
        return cos, sin
    return angles.cos(), angles.sin()


@torch.library.custom_op("anyformer::cos_sin", mutates_args=())
def cos_sin_once(angles: Tensor) -> tuple[Tensor, Tensor]:
    return angles.cos(), angles.sin()


@cos_sin_once.register_fake
def _(angles: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(angles), torch.empty_like(angles)

"""Small tables that depend on nothing but where they are used, made once for each device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Known = dict[tuple[torch.dtype, torch.device], Tensor]


def cached_table(known: Known, dtype: torch.dtype, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
    """What `make` gives, on the device: a GPU that had to wait for it in every pass could record no step.

    Compiled code makes it itself.
    """
    if torch.compiler.is_compiling():
        return make().to(device)
    key = dtype, device
    if key not in known:
        with torch.inference_mode(False):  # it may serve training later
            found = make().to(device)
        if type(found) is not Tensor:  # the shadow of one, while somebody only looks at shapes
            return found
        known[key] = found
    return known[key]


def cos_sin(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines. To train on a GPU the compiler is given them as one operation: it thinks them cheap, and would
    compute them again for every entry of everything that they are multiplied with."""
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

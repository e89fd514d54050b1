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

"""How a part says where its own parameters start, when no scheme of `core/init.py` knows them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Start = Callable[[Tensor, torch.Generator | None], object]  # fills in place


class Starting(nn.Module):
    """A module with parameters of its own kind: `self.starts["gate"] = constant(0.0)`.

    What is named here starts so under every scheme; everything else is filled by the scheme of the model. What a module
    keeps beside its weights (running means, the vector of a spectral norm) is a parameter without gradient, not a
    buffer: so it is filled, saved, loaded and averaged like every other number of the model.
    """

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[str, Start] = {}


def constant(value: float) -> Start:
    """The same number everywhere."""
    return lambda p, generator: p.fill_(value)


def normal(std: float) -> Start:
    """Normal around 0."""
    return lambda p, generator: p.normal_(0.0, std, generator=generator)


def uniform(low: float, high: float) -> Start:
    """Uniform between two numbers."""
    return lambda p, generator: p.uniform_(low, high, generator=generator)


def values(table: Tensor) -> Start:
    """Given numbers, such as a ramp over the channels."""
    return lambda p, generator: p.copy_(table)

"""How a part says where its own parameters start, when no scheme of `core/init.py` knows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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


# Partial applications of functions with a name: a module that holds one can be pickled.


def constant(value: float) -> Start:
    """The same number everywhere."""
    return partial(fill_constant, value=value)


def normal(std: float) -> Start:
    """Normal around 0."""
    return partial(fill_normal, std=std)


def uniform(low: float, high: float) -> Start:
    """Uniform between two numbers."""
    return partial(fill_uniform, low=low, high=high)


def values(table: Tensor) -> Start:
    """Given numbers, such as a ramp over the channels."""
    return partial(fill_values, table=table)


def fill_constant(p: Tensor, generator: torch.Generator | None, *, value: float) -> Tensor:
    return p.fill_(value)


def fill_normal(p: Tensor, generator: torch.Generator | None, *, std: float) -> Tensor:
    return p.normal_(0.0, std, generator=generator)


def fill_uniform(p: Tensor, generator: torch.Generator | None, *, low: float, high: float) -> Tensor:
    return p.uniform_(low, high, generator=generator)


def fill_values(p: Tensor, generator: torch.Generator | None, *, table: Tensor) -> Tensor:
    return p.copy_(table)

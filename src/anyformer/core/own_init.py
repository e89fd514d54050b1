"""How a part initialises its own parameters that no scheme of `core/init.py` covers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

Start = Callable[[Tensor, torch.Generator | None], object]  # fills in place


class Starting(nn.Module):
    """A module that initialises some parameters itself: `self.starts["gate"] = constant(0.0)`.

    Parameters named here are filled this way under every scheme; all others by the model's scheme. State beside the
    weights (running means, the vector of a spectral norm) is a parameter with requires_grad=False, not a buffer, so
    that it is initialised, saved, loaded and averaged like every other parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.starts: dict[str, Start] = {}


# Partials of module-level functions, so that a module holding one can be pickled.


def constant(value: float) -> Start:
    """Fill with a constant."""
    return partial(fill_constant, value=value)


def normal(std: float) -> Start:
    """Fill from a normal distribution with mean 0."""
    return partial(fill_normal, std=std)


def uniform(low: float, high: float) -> Start:
    """Fill from a uniform distribution."""
    return partial(fill_uniform, low=low, high=high)


def values(table: Tensor) -> Start:
    """Fill with given values, such as a ramp over the channels."""
    return partial(fill_values, table=table)


def fill_constant(p: Tensor, generator: torch.Generator | None, *, value: float) -> Tensor:
    return p.fill_(value)


def fill_normal(p: Tensor, generator: torch.Generator | None, *, std: float) -> Tensor:
    return p.normal_(0.0, std, generator=generator)


def fill_uniform(p: Tensor, generator: torch.Generator | None, *, low: float, high: float) -> Tensor:
    return p.uniform_(low, high, generator=generator)


def fill_values(p: Tensor, generator: torch.Generator | None, *, table: Tensor) -> Tensor:
    return p.copy_(table)

"""What mixers remember that are not attention: their newest inputs, or one state a token."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from anyformer.core.state import Keys
from anyformer.errors import UserError


class Inputs:
    """Inputs of earlier tokens (B,S,D), for a mixer that looks back over them."""

    def __init__(self, limit: int | None = None) -> None:
        self.held = Keys(limit=limit)

    def update(self, x: Tensor, window: int | None = None) -> Tensor:
        """Append (B,T,D); return all that are held, newest last. A step sees `window` of them, itself included."""
        return self.held.update(x[:, None], x[:, None, :, :0], window)[0][:, 0]

    def select(self, rows: Tensor) -> None:
        self.held.select(rows)

    def keep(self, length: int) -> None:
        self.held.keep(length)

    @property
    def span(self) -> int:
        return self.held.span

    @property
    def bytes(self) -> int:
        return self.held.bytes


@dataclass
class Running:
    """A state that each token replaces, as tensors (B,...) of any number: a recurrence, a running sum.

    `steps` holds the states after each token where going back must be possible (`rolling=False`).
    """

    now: tuple[Tensor, ...] = ()
    length: int = 0
    steps: list[tuple[Tensor, ...]] = field(default_factory=list)

    def update(self, now: tuple[Tensor, ...], tokens: int, steps: list[tuple[Tensor, ...]] | None = None) -> None:
        """The state after `tokens` more tokens; `steps` are those after each of them, where they are to be kept."""
        self.now, self.length = now, self.length + tokens
        if steps is not None:
            self.steps += steps

    def select(self, rows: Tensor) -> None:
        self.now = tuple(part[rows] for part in self.now)
        self.steps = [tuple(part[rows] for part in step) for step in self.steps]

    def keep(self, length: int) -> None:
        if length >= self.length:
            return
        if len(self.steps) != self.length:
            raise UserError("a running state has replaced what going back would need",
                            fix="make the state with rolling=False")  # fmt: skip
        self.steps = self.steps[:length]
        self.now = self.steps[-1] if self.steps else tuple(torch.zeros_like(part) for part in self.now)
        self.length = length

    @property
    def span(self) -> int:
        return 1

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.now)

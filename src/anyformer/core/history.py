"""What mixers remember that are not attention: their newest inputs, or one state a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from anyformer.core.context import Context
from anyformer.core.state import KVCache
from anyformer.errors import UserError


class InputHistory:
    """Inputs of earlier tokens (B,S,D), for a mixer that looks back over them."""

    def __init__(self, limit: int | None = None) -> None:
        self.held = KVCache(limit=limit)

    def update(self, x: Tensor, window: int | None = None) -> Tensor:
        """Append (B,T,D); return all that are held, newest last. A step sees `window` of them, itself included."""
        return self.held.update(x[:, None], x[:, None, :, :0], window)[0][:, 0]

    def select(self, rows: Tensor) -> None:
        self.held.select(rows)

    def truncate(self, length: int) -> None:
        self.held.truncate(length)

    def join(self, others: Sequence[InputHistory]) -> None:
        self.held.join([other.held for other in others])

    def trim(self, columns: int) -> None:
        self.held.trim(columns)

    @property
    def span(self) -> int:
        return self.held.span

    @property
    def bytes(self) -> int:
        return self.held.bytes


class RecomputedInputs(InputHistory):
    """All inputs so far, for a mixer that remembers nothing itself: each pass runs it over all of them again.

    What it gives for the newest tokens is then what one full pass would give, at that pass's cost.
    """

    def update_all(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Append (B,T,D); return all inputs (B,S,D) and the context of one pass over them."""
        ids = x[..., :0] if context.tokens is None else context.tokens[..., None]
        inputs, ids = self.held.update(x[:, None], ids[:, None])
        return inputs[:, 0], context.over_all_keys(None if context.tokens is None else ids[:, 0, :, 0])


@dataclass
class RecurrentState:
    """A state that each token replaces, as tensors (B,...) of any number: a recurrence, a running sum.

    `steps` holds the states after each of the newest tokens where going back must be possible (`rolling=False`).
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

    def truncate(self, length: int) -> None:
        if length >= self.length:
            return
        gone = self.length - length
        if len(self.steps) < gone + (length > 0):
            raise UserError("a running state has replaced what going back would need",
                            fix="make the state with rolling=False")  # fmt: skip
        self.steps = self.steps[: len(self.steps) - gone]
        self.now = self.steps[-1] if self.steps else tuple(torch.zeros_like(part) for part in self.now)
        self.length = length

    def drop_steps(self) -> None:
        """Nobody will go back behind the newest token any more."""
        self.steps = self.steps[-1:]

    def join(self, others: Sequence[Self]) -> None:
        parts = [self, *others]
        if any(part.steps for part in parts):
            raise UserError("texts that may be taken back cannot be joined", fix="make the states with rolling=True")
        self.now = tuple(torch.cat(held) for held in zip(*(part.now for part in parts), strict=True))
        self.length = max(part.length for part in parts)

    def trim(self, columns: int) -> None:
        """Padding has left nothing behind."""

    @property
    def span(self) -> int:
        return 1

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.now)

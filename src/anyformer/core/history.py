"""Decoding state of mixers other than attention: their newest inputs, or a recurrent state."""

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
    """Cache of earlier inputs (B,S,D), for a mixer that reads them again."""

    def __init__(self, limit: int | None = None) -> None:
        self.held = KVCache(limit=limit)

    def update(self, x: Tensor, window: int | None = None) -> Tensor:
        """Append (B,T,D); return all cached inputs, newest last. A step sees `window` of them, itself included."""
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
    """All inputs so far, for a mixer without a decoding state: each pass runs it over all of them again.

    Its output for the newest tokens then equals that of one full pass, at that pass's cost.
    """

    def update_all(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Append (B,T,D); return all inputs (B,S,D) and the context of one pass over them."""
        ids = x[..., :0] if context.tokens is None else context.tokens[..., None]
        inputs, ids = self.held.update(x[:, None], ids[:, None])
        return inputs[:, 0], context.over_all_keys(None if context.tokens is None else ids[:, 0, :, 0])


@dataclass
class RecurrentState:
    """A state that each token replaces, as any number of tensors (B,...): a recurrence, a running sum.

    `steps` holds the state after each of the newest tokens if `truncate` must be possible (`rolling=False`).
    """

    now: tuple[Tensor, ...] = ()
    length: int = 0
    steps: list[tuple[Tensor, ...]] = field(default_factory=list)

    def update(self, now: tuple[Tensor, ...], tokens: int, steps: list[tuple[Tensor, ...]] | None = None) -> None:
        """Set the state after `tokens` more tokens; `steps` are the states after each of them, if they are kept."""
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
            raise UserError("a recurrent state cannot be truncated: the earlier states were not kept",
                            fix="make the state with rolling=False")  # fmt: skip
        self.steps = self.steps[: len(self.steps) - gone]
        self.now = self.steps[-1] if self.steps else tuple(torch.zeros_like(part) for part in self.now)
        self.length = length

    def drop_steps(self) -> None:
        """Drop the states before the newest token: they will not be truncated to."""
        self.steps = self.steps[-1:]

    def join(self, others: Sequence[Self]) -> None:
        parts = [self, *others]
        if any(part.steps for part in parts):
            raise UserError("states that keep earlier steps cannot be joined", fix="make the states with rolling=True")
        self.now = tuple(torch.cat(held) for held in zip(*(part.now for part in parts), strict=True))
        self.length = max(part.length for part in parts)

    def trim(self, columns: int) -> None:
        """Nothing to do: padding does not enter the state."""

    @property
    def span(self) -> int:
        return 1

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.now)

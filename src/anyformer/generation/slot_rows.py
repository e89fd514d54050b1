"""Rows in fixed places of shared buffers: nothing is copied when rows come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.core.places import PlacedState, Places
from anyformer.core.state import LayerState
from anyformer.errors import UserError
from anyformer.generation.rows import Row, row_limit, scores_of
from anyformer.generation.running import device_of, hidden_states


def can_be_placed(model: Any) -> bool:
    """Whether every layer of a decoder can keep what it remembers in fixed places."""
    return not isinstance(model.spec, Seq2Seq) and all(mixer.placed for mixer in model.spec.stack.mixers)


class SlotRows:
    """Row n is slot n of buffers (capacity, G, limit + 1, C). The spare column takes what idle rows write in a step."""

    def __init__(self, model: Any, *, capacity: int = 8, limit: int | None = None) -> None:
        if not can_be_placed(model):
            raise UserError("a layer of this model has no fixed places", fix="use LoneRows")
        self.model, self.capacity, self.limit = model, capacity, row_limit(model, limit)
        self.device = device_of(model)
        dtype = next(model.parameters()).dtype
        stack = model.stack
        self.layers: list[Places] = [
            stack.blocks[which].mixer.places(capacity, self.limit + 1, self.device, dtype) for which in stack.order
        ]
        self.lengths = [0] * capacity
        self.used: set[int] = set()
        self.columns = torch.arange(self.limit + 1, device=self.device)[None]

    @property
    def free(self) -> int:
        return self.capacity - len(self.used)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)

    def open(self, tokens: Sequence[int], *, source: Sequence[int] | None = None, scope: str = "") -> Row:
        if not self.free:
            raise UserError(f"all {self.capacity} rows are open", fix="close one first")
        slot = min(set(range(self.capacity)) - self.used)  # low slots: a step covers all slots up to the highest in use
        self.used.add(slot)
        self.lengths[slot] = 0
        return Row(slot, 0)

    @torch.no_grad()
    def read(self, row: int, tokens: Sequence[int]) -> Tensor:
        start, stop = self.lengths[row], self.lengths[row] + len(tokens)
        places = torch.arange(start, stop, device=self.device)[None]
        ids = torch.tensor([list(tokens)], device=self.device)
        hidden = hidden_states(self.model, ids, None, self.state(slice(row, row + 1), stop, places, places))
        self.lengths[row] = stop
        return hidden[0]

    def scores(self, hidden: Tensor) -> Tensor:
        return scores_of(self.model, hidden)

    @torch.no_grad()
    def step(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        count = max(rows) + 1
        longest = max(self.lengths[row] for row in rows) + 1
        at, places = [self.limit] * count, [0] * count
        for row in rows:
            at[row] = places[row] = self.lengths[row]
            self.lengths[row] += 1
        chosen = torch.tensor(rows, device=self.device)
        ids = torch.zeros(count, dtype=torch.long, device=self.device).index_copy_(0, chosen, tokens)
        idle = len(rows) < count
        state = self.state(
            slice(0, count), self.limit + 1 if idle else longest, torch.tensor(places, device=self.device)[:, None],
            torch.tensor(at, device=self.device)[:, None],
        )  # fmt: skip
        hidden = hidden_states(self.model, ids[:, None], None, state)[:, 0]
        return self.scores(hidden[chosen] if idle else hidden)

    def state(self, rows: slice, columns: int, places: Tensor, at: Tensor) -> PlacedState:
        """One pass over some slots, as far as the longest of them reaches."""
        layers = [LayerState(layer.part(rows, columns, at)) for layer in self.layers]
        return PlacedState(layers, rows.stop - rows.start, places=places, columns=self.columns[:, :columns])

    def close(self, row: int, *, keep: bool = True) -> None:
        self.used.discard(row)

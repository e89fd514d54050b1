"""Rows: texts of different length that one model writes side by side.

A row is opened for a prompt, reads it in pieces, then takes part in steps with other rows, and is closed. How rows are
held is the store's own affair: each alone (`LoneRows`, the definition the others must meet), in fixed places of shared
buffers (`SlotRows`, for attention), or joined into one padded batch (`JoinedRows`, for every other part).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.core.state import State
from anyformer.errors import UserError
from anyformer.generation.prompts import decoder_of, room
from anyformer.generation.runners.eager import RunningModel, RunningPair, device_of

UNBOUNDED = 4096  # columns of a model that can place any number of tokens, unless told otherwise


class Row(NamedTuple):
    """A row that was opened, and how many of its prompt's first tokens it knows already from an earlier one."""

    number: int
    known: int


class Rows(Protocol):
    """What continuous batching needs from a model. One thread uses it."""

    model: Any
    capacity: int  # rows open at once
    limit: int  # tokens a row may hold, prompt and text together
    resumes: bool  # whether a text goes on from a row that was closed as if it had stayed open
    side_by_side: bool  # whether the pieces of several rows are read in one pass

    def open(self, tokens: Sequence[int], *, source: Sequence[int] | None = None, scope: str = "") -> Row:
        """A row for a prompt; `known` tokens of it, never all, need not be read. `source` is for an encoder-decoder.

        Only rows of the same `scope` are reused: what one user's prompts cost must not be felt by another.
        """

    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        """More tokens of some rows; hidden states (T,D) of each."""

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores of the next token (N,V) from hidden states (N,D)."""

    def step(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        """One more token (N,) for each of these rows; scores of the next, (N,V)."""

    def close(self, row: int, *, keep: bool = True) -> None:
        """The row has ended. Unless told otherwise what it read may be reused until its room is needed."""

    @property
    def free(self) -> int:
        """Rows that can be opened now."""

    @property
    def bytes(self) -> int:
        """Memory of all that is held."""


class LoneRows:
    """Every row by itself: no neighbour can matter. Slow with many rows, and the same for every part."""

    resumes = False  # nothing is kept of a row that was closed
    side_by_side = False

    def __init__(self, model: Any, *, capacity: int = 8, limit: int | None = None) -> None:
        self.model, self.capacity, self.limit = model, capacity, row_limit(model, limit)
        self.open_rows: dict[int, RunningModel] = {}
        self.next = 0

    @property
    def free(self) -> int:
        return self.capacity - len(self.open_rows)

    @property
    def bytes(self) -> int:
        return sum(row.state.bytes for row in self.open_rows.values())

    def open(self, tokens: Sequence[int], *, source: Sequence[int] | None = None, scope: str = "") -> Row:
        if not self.free:
            raise UserError(f"all {self.capacity} rows are open", fix="close one first")
        number, self.next = self.next, self.next + 1
        self.open_rows[number] = running(self.model, self.model.state(1), source)
        return Row(number, 0)

    @torch.no_grad()
    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        device = device_of(self.model)
        return [
            self.open_rows[row].read(torch.tensor([list(tokens)], device=device), None)[0]
            for row, tokens in pieces.items()
        ]

    @torch.no_grad()
    def scores(self, hidden: Tensor) -> Tensor:
        return scores_of(self.model, hidden)

    @torch.no_grad()
    def step(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        return torch.cat([self.open_rows[row].step(tokens[i : i + 1]) for i, row in enumerate(rows)])

    def close(self, row: int, *, keep: bool = True) -> None:
        del self.open_rows[row]


def running(model: Any, state: State, source: Sequence[int] | None) -> RunningModel:
    """A model about to write; an encoder-decoder reads its source here, unless the state knows it."""
    if not isinstance(model.spec, Seq2Seq):
        return RunningModel(model, state)
    if source is None:
        raise UserError("an encoder-decoder needs a source", fix="pass source=")
    if state.memory is None:
        state.memory = encoded(model, source)
    return RunningPair(model, state)


@torch.no_grad()
def encoded(model: Any, source: Sequence[int]) -> Tensor:
    """The encoder's output (1,S,D) for one source."""
    return model.encode(torch.tensor([list(source)], device=device_of(model)))


@torch.no_grad()
def scores_of(model: Any, hidden: Tensor) -> Tensor:
    """Scores (N,V) from hidden states (N,D), of a decoder or an encoder-decoder."""
    kind = RunningPair if isinstance(model.spec, Seq2Seq) else RunningModel
    return kind(model, State([], 1)).scores(hidden[:, None])


def row_limit(model: Any, asked: int | None) -> int:
    """Tokens a row may hold: what was asked for, within what the model can place."""
    decoder = model.spec.decoder if isinstance(model.spec, Seq2Seq) else model.spec
    most, why = room(decoder)
    if asked is not None and most is not None and asked > most:
        raise UserError(f"a context of {asked} tokens is more than {most} {why}", fix=f"use {most}")
    return asked if asked is not None else UNBOUNDED if most is None else most


def rows_for(model: Any, *, capacity: int = 8, limit: int | None = None, strict: bool = False) -> Rows:
    """The store that serves a model best: fixed places where every layer has them, else rows joined into one batch.

    In fixed places (`SlotRows`) nothing is copied when rows come and go, and a prompt goes on from whatever an earlier
    one had in common with it; but only attention can forget by hiding. A recurrence or a long filter has no columns to
    hide, so their rows are joined and padded (`JoinedRows`), which every causal part obeys. `strict`, results that do
    not depend on the neighbours to the last bit, is then each row by itself (`LoneRows`); so it is where a feed's
    products have another shape beside other tokens (`Feed.exact`).
    """
    from anyformer.generation.cache.joined import JoinedRows
    from anyformer.generation.cache.slots import SlotRows, can_be_placed

    layers = decoder_of(model.spec).stack.layers
    exact = all(layer.feed is None or layer.feed.exact for layer in layers)
    if can_be_placed(model) and (exact or not strict):
        return SlotRows(model, capacity=capacity, limit=limit, strict=strict)
    return (LoneRows if strict else JoinedRows)(model, capacity=capacity, limit=limit)

"""Rows joined into one batch, padded on the left: what every causal part can do, whatever it remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.core.state import State
from anyformer.errors import UserError
from anyformer.generation.cache.base import Row, row_limit, running, scores_of
from anyformer.generation.cache.lanes import Held, Source
from anyformer.generation.runners.eager import RunningModel, device_of


@dataclass
class Kept:
    """What a model remembers of a text, which a prompt that begins with it may start from."""

    scope: str
    source: Source
    tokens: list[int]
    state: State


@dataclass(eq=False)
class Joining(Held):
    """One open row; its state is its own until it takes part in a step."""

    prompt: int = 0  # tokens it was opened for
    own: RunningModel | None = None  # None while it is part of the batch


class JoinedRows:
    """A row reads its prompt alone, joins the others for steps and leaves by being left out.

    Joining and leaving copy what is remembered; a step in between costs what a batch costs. What was remembered before
    the last piece of a prompt, and at the end of a row, is kept for prompts of the same `scope` that begin with it, as
    many as there are rows.
    """

    resumes = True
    side_by_side = False

    def __init__(self, model: Any, *, capacity: int = 8, limit: int | None = None) -> None:
        self.model, self.capacity, self.limit = model, capacity, row_limit(model, limit)
        self.device = device_of(model)
        self.open_rows: dict[int, Joining] = {}
        self.batch: RunningModel | None = None
        self.order: list[int] = []  # rows of the batch, closed ones too until the next step
        self.texts: list[Tensor] = []  # (N,) what those rows have written since they were put together
        self.where: Tensor | None = None  # (N,) where in the batch the rows of a step stand, if not in their order
        self.asked: list[int] = []  # the rows of the last step
        self.kept: list[Kept] = []  # least recently used first
        self.next = 0

    @property
    def free(self) -> int:
        return self.capacity - len(self.open_rows)

    @property
    def bytes(self) -> int:
        states = [kept.state for kept in self.kept] + ([] if self.batch is None else [self.batch.state])
        states += [row.own.state for row in self.open_rows.values() if row.own is not None]
        return sum(state.bytes for state in states)

    # ---------------------------------------------------------------- rows come and go

    @torch.no_grad()
    def open(self, tokens: Sequence[int], *, source: Sequence[int] | None = None, scope: str = "") -> Row:
        if not self.free:
            raise UserError(f"all {self.capacity} rows are open", fix="close one first")
        prompt, whole = list(tokens), None if source is None else tuple(source)
        best: Kept | None = None
        for kept in self.kept:
            if (kept.scope, kept.source) == (scope, whole) and len(kept.tokens) < len(prompt):
                longer = best is None or len(kept.tokens) > len(best.tokens)
                best = kept if longer and prompt[: len(kept.tokens)] == kept.tokens else best
        state = self.model.state(1) if best is None else best.state.fork()
        if best is not None:
            self.kept.remove(best)
            self.kept.append(best)
        known = [] if best is None else list(best.tokens)
        number, self.next = self.next, self.next + 1
        self.open_rows[number] = Joining(
            scope, whole, len(known), known, prompt=len(prompt), own=running(self.model, state, source)
        )
        return Row(number, len(known))

    def close(self, row: int, *, keep: bool = True) -> None:
        held = self.open_rows.pop(row)
        if keep and held.length:
            held.recall()
            self.keep(held, self.leave(row) if held.own is None else held.own.state)

    def keep(self, held: Joining, state: State) -> None:
        """Keep what is remembered of a row's text so far; what has not been used for longest gives way."""
        text = held.scope, held.source, list(held.tokens)
        self.kept = [one for one in self.kept if (one.scope, one.source, one.tokens) != text]
        self.kept = [*self.kept, Kept(*text, state)][-self.capacity :]

    # ---------------------------------------------------------------- reading and steps

    @torch.no_grad()
    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        return [self.read_one(row, tokens) for row, tokens in pieces.items()]

    def read_one(self, row: int, tokens: Sequence[int]) -> Tensor:
        held = self.open_rows[row]
        self.check(held.length + len(tokens))
        if held.own is None:
            held.own = running(self.model, self.leave(row), held.source)
        if held.length and held.length + len(tokens) == held.prompt:
            held.recall()
            self.keep(held, held.own.state.fork())
        hidden = held.own.read(torch.tensor([list(tokens)], device=self.device), None)[0]
        held.took(tokens)
        return hidden

    @torch.no_grad()
    def step(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        if self.batch is None or self.asked != list(rows):
            self.put_together(list(rows))
        assert self.batch is not None
        held = [self.open_rows[row] for row in rows]
        self.check(max(one.length for one in held) + 1)
        self.texts.append(tokens.clone())
        for one in held:
            one.length += 1
        if self.where is None:
            return self.batch.step(tokens)
        return self.batch.step(torch.zeros_like(tokens).index_copy_(0, self.where, tokens))[self.where]

    @torch.no_grad()
    def scores(self, hidden: Tensor) -> Tensor:
        return scores_of(self.model, hidden)

    def check(self, length: int) -> None:
        if length > self.limit:
            raise UserError(f"{length} tokens do not fit a row of {self.limit}", fix="close it, or use a larger limit")

    def leave(self, row: int) -> State:
        """A copy of one row of the batch by itself."""
        assert self.batch is not None
        at = torch.tensor([self.order.index(row)], device=self.device)
        self.asked = []  # the batch is put together anew before its next step
        return self.batch.state.taken(at)

    def put_together(self, rows: list[int]) -> None:
        """A batch of these rows: others leave it, new ones join."""
        staying: list[int] = []
        for at, row in enumerate(self.order):
            held = self.open_rows.get(row)
            if held is None or held.own is not None:
                continue  # closed, or gone on alone since
            if row in rows:
                staying.append(at)
            else:
                held.own = running(self.model, self.leave(row).trim(held.length), held.source)
        states: list[State] = []
        order = [self.order[at] for at in staying]
        if self.batch is not None and order:
            state = self.batch.state
            if staying != list(range(len(self.order))):
                state.select(torch.tensor(staying, device=self.device))
                state.trim(max(self.open_rows[row].length for row in order))
            states.append(state)
        for row in rows:
            own = self.open_rows[row].own
            if own is not None:
                states.append(own.state)
                order.append(row)
                self.open_rows[row].own = None
        self.batch = running(self.model, states[0].join(states[1:]) if len(states) > 1 else states[0], ())
        self.order, self.asked, self.texts = order, rows, []
        which = [order.index(row) for row in rows]
        self.where = None if which == list(range(len(rows))) else torch.tensor(which, device=self.device)
        for at, row in enumerate(rows):
            self.open_rows[row].steps.append((self.texts, at))

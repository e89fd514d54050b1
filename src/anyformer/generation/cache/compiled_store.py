"""Sequences of a compiled decoder: a static KV cache used by compiled steps or our own C++."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core.state import LayerState
from anyformer.core.static_cache import StaticCache, StaticState, next_power_of_two
from anyformer.generation.cache.store import Added, SequenceStore, Source, pack_pieces
from anyformer.generation.runners.compiled import FEW, Compiled
from anyformer.generation.runners.eager import hidden_states, static_caches

SIZES = (1, 2, 8, FEW)  # tokens per sequence in one pass: a decode step, one after accepted drafts, drafts to verify
BLOCK = 64  # columns of a pass are a multiple of this: few views, and at most 63 wasted columns


@dataclass
class CompiledSteps:
    """Inputs shared by consecutive steps of the same sequences; idle rows stay in their first column."""

    sequences: list[int]
    tokens: Tensor  # (rows,1)
    positions: Tensor  # (rows,1)
    at: Tensor  # (rows,1) their columns: equal to positions, but a separate tensor as compiled code expects
    increment: Tensor  # (rows,1) 0 for idle rows
    longest: int


class CompiledStore(SequenceStore):
    """Sequence n is row n of buffers made for `capacity` sequences of `limit` tokens."""

    batches_prefill = True

    def __init__(self, model: Compiled, *, capacity: int, limit: int, prefill_chunk: int | None = None) -> None:
        self.compiled, self.model, self.device = model, model.model, model.device
        self.capacity, self.limit, self.prefill_chunk = capacity, limit, prefill_chunk
        self.is_cpp = model.uses_cpp()  # then any shape will do
        self.rows = capacity if self.is_cpp else next_power_of_two(capacity)
        # Draft tokens may exceed the limit. One column more than any pass uses: a view of a whole buffer would be
        # compiled separately.
        width = round_up(limit + FEW + 1) + 1
        layers = [cache.buffers for cache in static_caches(self.model, self.rows, width)]
        self.keys, self.values = [keys for keys, _ in layers], [values for _, values in layers]
        for buffer in () if self.is_cpp else (*self.keys, *self.values):
            mark_dynamic(buffer, 2)
        self.run = model.bind(self.keys, self.values)
        self.columns = torch.arange(width, device=self.device)[None]
        self.reaches: dict[int, Tensor] = {}  # views of the first columns, by their number
        self.lengths: dict[int, int] = {}
        self.steps: CompiledSteps | None = None

    def share_with(self, model: Compiled) -> CompiledStore:
        """A store for a draft model of the same shape on the same buffers: each reads and overwrites the other's
        entries."""
        twin = copy.copy(self)
        twin.compiled, twin.model, twin.run = model, model.model, model.bind(self.keys, self.values)
        twin.lengths = dict(self.lengths)
        return twin

    @property
    def available(self) -> int:
        return self.capacity - len(self.lengths)

    @property
    def bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for buffer in (*self.keys, *self.values))

    def length(self, sequence: int) -> int:
        return self.lengths[sequence]

    def add(self, prompt: Sequence[int], *, source: Source | None = None, scope: str = "") -> Added:
        self.check_available()
        number = next(row for row in range(self.capacity) if row not in self.lengths)
        self.lengths[number] = 0
        return Added(number, 0)

    def free(self, sequence: int, *, keep: bool = True) -> None:
        del self.lengths[sequence]
        self.steps = None

    def truncate(self, sequence: int, length: int) -> None:
        self.lengths[sequence] = length
        self.steps = None

    # ---------------------------------------------------------------- prompts

    @torch.no_grad()
    def prefill(self, prompts: Mapping[int, Sequence[int]]) -> Tensor:
        """Prompts are prefilled eagerly, never compiled: all of them in one pass, from the first column."""
        assert list(prompts) == list(range(len(prompts))) and not any(self.lengths.values())
        lengths = torch.tensor([len(prompt) for prompt in prompts.values()], device=self.device)
        longest = max(map(len, prompts.values()))
        tokens = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts.values()])
        tokens = tokens.to(self.device)  # padding is masked until it is overwritten
        last, size = None, self.prefill_chunk or longest
        for start in range(0, longest, size):
            hidden = self.forward_eager(tokens[:, start : start + size], start)
            at = (lengths - 1 - start).clamp(0, hidden.shape[1] - 1)
            newest = hidden[torch.arange(len(hidden), device=self.device), at]
            last = newest if last is None else newest.where((lengths > start)[:, None], last)
        assert last is not None
        self.lengths.update({number: len(prompt) for number, prompt in prompts.items()})
        self.steps = None
        return self.logits(last)

    @torch.no_grad()
    def extend(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        starts = {number: self.lengths[number] for number in pieces}
        self.lengths.update({number: starts[number] + len(piece) for number, piece in pieces.items()})
        self.steps = None
        longest = max(map(len, pieces.values()))
        if longest > FEW:  # a prompt, by itself
            return [
                self.forward_eager(torch.tensor([list(piece)], device=self.device), starts[number], number)[0]
                for number, piece in pieces.items()
            ]
        width = longest if self.is_cpp else next(size for size in SIZES if size >= longest)
        packed = pack_pieces(
            self.rows, width, {number: (starts[number], piece) for number, piece in pieces.items()},
            behind=max(self.lengths.values()),
        )  # fmt: skip
        tokens, positions, at = (torch.tensor(one, device=self.device) for one in packed[:3])
        hidden = self.run(tokens, positions, at, self.first_columns(packed.end + 1))
        return [hidden[number, : len(piece)] for number, piece in pieces.items()]

    def forward_eager(self, tokens: Tensor, start: int, first: int = 0) -> Tensor:
        """Hidden states (B,T,D) of the next tokens of B rows from row `first`, all starting at the same column."""
        rows, stop = slice(first, first + tokens.shape[0]), start + tokens.shape[1]
        layers = [
            LayerState(StaticCache(keys=k[rows, :, :stop], values=v[rows, :, :stop], at=slice(start, stop)))
            for k, v in zip(self.keys, self.values, strict=True)
        ]
        state = StaticState(
            layers, tokens.shape[0], length=start, gaps=False, new_positions=self.columns[:, start:stop],
            columns=self.columns[:, :stop],
        )  # fmt: skip
        return hidden_states(self.model, tokens, None, state)

    # ---------------------------------------------------------------- steps

    @torch.no_grad()
    def step(self, sequences: Sequence[int], tokens: Tensor) -> Tensor:
        if list(sequences) != list(range(len(self.lengths))):  # some sequences are not part of this step
            pieces = {number: [token] for number, token in zip(sequences, tokens.tolist(), strict=True)}
            return self.logits(torch.cat(self.extend(pieces)))
        steps = self.plan_steps(sequences) if self.steps is None else self.steps
        count = len(steps.sequences)
        steps.tokens[:count, 0] = tokens
        steps.longest += 1
        hidden = self.run(steps.tokens, steps.positions, steps.at, self.first_columns(steps.longest))
        steps.positions += steps.increment
        steps.at += steps.increment
        for number in sequences:
            self.lengths[number] += 1
        return self.logits(hidden[:, 0])[:count]

    def plan_steps(self, sequences: Sequence[int]) -> CompiledSteps:
        tokens, positions, increment = (
            torch.zeros(self.rows, 1, dtype=torch.long, device=self.device) for _ in range(3)
        )
        lengths = [self.lengths[number] for number in sequences]
        positions[: len(lengths), 0] = torch.tensor(lengths, device=self.device)
        increment[: len(lengths)] = 1
        self.steps = CompiledSteps(list(sequences), tokens, positions, positions.clone(), increment, max(lengths))
        return self.steps

    def first_columns(self, count: int) -> Tensor:
        """The positions of at least `count` columns, (1,L)."""
        count = round_up(count)
        if count not in self.reaches:
            self.reaches[count] = self.columns[:, :count]
            if not self.is_cpp:
                mark_dynamic(self.reaches[count], 1)
        return self.reaches[count]

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        return self.compiled.logits(hidden)

    # ---------------------------------------------------------------- copies and beams

    def fork(self, copies: int) -> list[int]:
        count = len(self.lengths)
        self.check_fork(count * copies)
        rows = [row for row in range(count) for _ in range(copies)]
        if copies > 1:
            self.copy_rows(torch.tensor(rows, device=self.device))
            self.lengths = {number: self.lengths[row] for number, row in enumerate(rows)}
            self.steps = None
        return list(self.lengths)

    def select(self, sequences: Sequence[int], origins: Tensor) -> None:
        assert list(sequences) == list(range(len(self.lengths)))
        self.copy_rows(origins)

    def copy_rows(self, rows: Tensor) -> None:
        """Overwrite the first rows with copies of these."""
        for buffer in (*self.keys, *self.values):
            buffer[: len(rows)] = buffer[rows]


def mark_dynamic(tensor: Tensor, axis: int) -> None:
    """Mark an axis as dynamic for the compiler."""
    from torch._dynamo import mark_dynamic  # imports the whole compiler

    mark_dynamic(tensor, axis)


def round_up(columns: int) -> int:
    return -(-columns // BLOCK) * BLOCK

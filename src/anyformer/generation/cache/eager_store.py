"""Sequences whose states are joined into one left-padded batch; works for every causal part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anyformer.core.history import RecurrentState
from anyformer.core.model import Seq2Seq
from anyformer.core.state import State
from anyformer.errors import UserError
from anyformer.generation.cache.store import (
    Added,
    CachedTokens,
    SequenceStore,
    Source,
    SourceKey,
    check_limit,
)
from anyformer.generation.runners.eager import EncoderOutput, LanguageModel, device_of, encode, hidden_states


@dataclass
class CachedPrefix:
    """The decoding state after some tokens, reusable by a prompt that begins with them."""

    scope: str
    source: SourceKey
    tokens: list[int]
    state: State


@dataclass(eq=False)
class EagerSequence(CachedTokens):
    """One sequence; it has its own state until it joins the batch."""

    prompt_length: int = 0
    encoded: EncoderOutput | None = None
    state: State | None = None  # None before its first token, and while it is part of the batch


class EagerStore(SequenceStore):
    """Runs the model eagerly, with any part; a part without a cache is run over all its inputs again.

    With `batched`, sequences are prefilled alone, join the batch for decode steps, and leave it when not stepped.
    Joining and leaving copy the state; steps in between cost one batched pass. Otherwise every sequence is run by
    itself, independent of its neighbours, which is the reference for the other stores.

    With `prefix_cache`, the states before the last piece of a prompt and at the end of a sequence are kept for prompts
    of the same scope with that prefix; at most `capacity` of them. `rolling` lets windows drop tokens that no query
    can see any more, and then nothing can be truncated. `preallocate` reserves `limit` tokens at once; `prefill_chunk`
    bounds the tokens of one prefill pass.
    """

    def __init__(
        self, model: LanguageModel, *, capacity: int = 8, limit: int | None = None, batched: bool = True,
        prefix_cache: bool = True, rolling: bool = True, preallocate: bool = False, prefill_chunk: int | None = None,
    ) -> None:  # fmt: skip
        self.model, self.capacity, self.limit = model, capacity, check_limit(model, limit)
        self.batched, self.rolling, self.prefill_chunk = batched, rolling, prefill_chunk
        self.can_resume = self.prefix_cache = prefix_cache and batched
        self.preallocated = self.limit if preallocate else None
        self.device = device_of(model)
        self.sequences: dict[int, EagerSequence] = {}
        self.batch: State | None = None
        self.rows: list[int] = []  # sequences in the rows of the batch, including freed ones until the next step
        self.stepping: list[int] = []  # sequences of the last step
        self.order: Tensor | None = None  # (N,) the rows of those, if they are not 0, 1, 2, ...
        self.stepped: list[Tensor] = []  # (N,) tokens of each step since the batch was formed
        self.prefixes: list[CachedPrefix] = []  # least recently used first
        self.next = 0

    @property
    def available(self) -> int:
        return self.capacity - len(self.sequences)

    @property
    def bytes(self) -> int:
        states = [prefix.state for prefix in self.prefixes] + ([] if self.batch is None else [self.batch])
        states += [sequence.state for sequence in self.sequences.values() if sequence.state is not None]
        return sum(state.bytes for state in states)

    def length(self, sequence: int) -> int:
        return self.sequences[sequence].length

    # ---------------------------------------------------------------- adding and freeing

    @torch.no_grad()
    def add(self, prompt: Sequence[int], *, source: Source | None = None, scope: str = "") -> Added:
        self.check_available()
        if source is None and isinstance(self.model.spec, Seq2Seq):
            raise UserError("an encoder-decoder needs a source", fix="pass source=")
        key: SourceKey = source if source is None or isinstance(source, EncoderOutput) else tuple(source)
        sequence = EagerSequence(scope, key, prompt_length=len(prompt))
        prefix = self.find_prefix(sequence, list(prompt))
        if prefix is not None:
            self.prefixes.remove(prefix)
            self.prefixes.append(prefix)
            sequence.state, sequence.tokens = prefix.state.fork(), list(prefix.tokens)
            sequence.length = len(prefix.tokens)
        elif source is not None:
            sequence.encoded = encode(self.model, source)
        number, self.next = self.next, self.next + 1
        self.sequences[number] = sequence
        return Added(number, sequence.length)

    def find_prefix(self, sequence: EagerSequence, prompt: list[int]) -> CachedPrefix | None:
        """The longest cached prefix of a prompt that leaves at least one token to run."""
        best: CachedPrefix | None = None
        for prefix in self.prefixes:
            same = (prefix.scope, prefix.source) == (sequence.scope, sequence.source)
            if same and len(prefix.tokens) < len(prompt) and prompt[: len(prefix.tokens)] == prefix.tokens:
                best = prefix if best is None or len(prefix.tokens) > len(best.tokens) else best
        return best

    def free(self, sequence: int, *, keep: bool = True) -> None:
        held = self.sequences.pop(sequence)
        if keep and held.length and self.prefix_cache:
            self.keep_prefix(held, self.copy_out(sequence) if held.state is None else held.state)

    def keep_prefix(self, sequence: EagerSequence, state: State) -> None:
        """Cache the state after a sequence's tokens so far; the least recently used one is evicted."""
        sequence.fetch_tokens()
        key = sequence.scope, sequence.source, list(sequence.tokens)
        others = [one for one in self.prefixes if (one.scope, one.source, one.tokens) != key]
        self.prefixes = [*others, CachedPrefix(*key, state)][-self.capacity :]

    def new_state(self, sequences: Sequence[EagerSequence]) -> State:
        """The initial state of sequences."""
        state = self.model.state(len(sequences), self.preallocated, rolling=self.rolling)
        encoded = [sequence.encoded for sequence in sequences if sequence.encoded is not None]
        if encoded:
            state.memory = encoded[0].hidden if len(encoded) == 1 else torch.cat([one.hidden for one in encoded])
            masks = [one.mask for one in encoded if one.mask is not None]
            state.memory_mask = torch.cat(masks) if masks else None
        return state

    # ---------------------------------------------------------------- running tokens

    @torch.no_grad()
    def extend(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        self.check_length(max(self.length(number) + len(piece) for number, piece in pieces.items()))
        if self.batched and not self.prefix_cache and len(pieces) > 1 and pieces.keys() == self.sequences.keys():
            if not any(sequence.length for sequence in self.sequences.values()):
                return self.extend_together(pieces)
        return [self.extend_one(number, piece) for number, piece in pieces.items()]

    def extend_together(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        """Prefill all sequences in one left-padded pass."""
        longest = max(map(len, pieces.values()))
        tokens = torch.tensor([[0] * (longest - len(piece)) + list(piece) for piece in pieces.values()])
        lengths = torch.tensor([len(piece) for piece in pieces.values()])[:, None]
        mask = None
        if int(lengths.min()) < longest:
            mask = (torch.arange(longest)[None] >= longest - lengths).to(self.device)
        self.batch, self.rows, self.stepping = self.new_state([self.sequences[one] for one in pieces]), list(pieces), []
        hidden = self.forward(tokens.to(self.device), mask, self.batch)
        for number, piece in pieces.items():
            self.sequences[number].append(piece)
        return [row[longest - len(piece) :] for row, piece in zip(hidden, pieces.values(), strict=True)]

    def extend_one(self, number: int, piece: Sequence[int]) -> Tensor:
        """Run the next tokens of one sequence, which leaves the batch."""
        sequence = self.sequences[number]
        state = self.own_state(number)
        if self.prefix_cache and sequence.length and sequence.length + len(piece) == sequence.prompt_length:
            self.keep_prefix(sequence, state.fork())
        hidden = self.forward(torch.tensor([list(piece)], device=self.device), None, state)
        sequence.append(piece)
        return hidden[0]

    def forward(self, tokens: Tensor, mask: Tensor | None, state: State) -> Tensor:
        """Hidden states (B,T,D), at most `prefill_chunk` tokens at a time."""
        size = self.prefill_chunk or tokens.shape[1]
        found = [
            hidden_states(
                self.model, tokens[:, at : at + size], None if mask is None else mask[:, at : at + size], state
            )
            for at in range(0, tokens.shape[1], size)
        ]
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    @torch.no_grad()
    def step(self, sequences: Sequence[int], tokens: Tensor) -> Tensor:
        self.check_length(max(self.length(number) for number in sequences) + 1)
        if not self.batched:
            found = [self.extend_one(number, [token]) for number, token in zip(sequences, tokens.tolist(), strict=True)]
            return torch.cat([self.logits(hidden) for hidden in found])
        batch = self.form_batch(sequences)
        if self.prefix_cache:
            self.stepped.append(tokens.clone())
        for number in sequences:
            self.sequences[number].length += 1
        rows = tokens if self.order is None else torch.zeros_like(tokens).index_copy_(0, self.order, tokens)
        logits = self.logits(hidden_states(self.model, rows[:, None], None, batch)[:, 0])
        return logits if self.order is None else logits[self.order]

    def truncate(self, sequence: int, length: int) -> None:
        state = self.own_state(sequence).truncate(length)
        for layer in state.layers:
            if isinstance(layer.mixer, RecurrentState):
                layer.mixer.drop_steps()  # otherwise a recurrence would keep its state after every token
        self.sequences[sequence].truncate(length)

    # ---------------------------------------------------------------- the batch

    def form_batch(self, sequences: Sequence[int]) -> State:
        """The joined state of these sequences, one per row: others leave the batch, new ones join."""
        if self.batch is not None and self.stepping == list(sequences):
            return self.batch
        staying: list[int] = []
        for row, number in enumerate(self.rows):
            held = self.sequences.get(number)
            if held is None or held.state is not None:
                continue  # freed, or run alone since
            if number in sequences:
                staying.append(row)
            else:
                self.own_state(number)
        states: list[State] = []
        rows = [self.rows[row] for row in staying]
        if self.batch is not None and rows:
            if staying != list(range(len(self.rows))):
                self.batch.select(torch.tensor(staying, device=self.device))
                self.batch.trim(max(self.length(number) for number in rows))
            states.append(self.batch)
        for number in sequences:
            held = self.sequences[number]
            if held.state is not None:
                states.append(held.state)
                rows.append(number)
                held.state = None
        self.batch = states[0].join(states[1:]) if len(states) > 1 else states[0]
        self.rows, self.stepping, self.stepped = rows, list(sequences), []
        order = [rows.index(number) for number in sequences]
        self.order = None if order == list(range(len(rows))) else torch.tensor(order, device=self.device)
        for which, number in enumerate(sequences):
            if self.prefix_cache:
                self.sequences[number].steps.append((self.stepped, which))
        return self.batch

    def own_state(self, number: int) -> State:
        """A sequence's own state, copied out of the batch if it is part of it."""
        sequence = self.sequences[number]
        if sequence.state is None and not sequence.length:
            sequence.state = self.new_state([sequence])
        elif sequence.state is None:
            sequence.state = self.copy_out(number).trim(sequence.length)
        assert sequence.state is not None
        return sequence.state

    def copy_out(self, number: int) -> State:
        """A copy of one row of the batch."""
        assert self.batch is not None
        row = torch.tensor([self.rows.index(number)], device=self.device)
        self.stepping = []  # forces the batch to be formed again before its next step
        return self.batch.copy_rows(row)

    def fork(self, copies: int) -> list[int]:
        numbers = list(self.sequences)
        if copies == 1:
            return numbers
        self.check_fork(len(numbers) * copies)
        found: list[int] = []
        for number in numbers:
            original = self.sequences[number]
            original.fetch_tokens()
            for copy in range(copies):
                name = number if copy == 0 else self.next
                self.next += copy > 0
                self.sequences[name] = replace(original, tokens=list(original.tokens), steps=[])
                if not self.batched and copy > 0:
                    self.sequences[name].state = self.own_state(number).fork()
                found.append(name)
        if self.batched:
            state = self.form_batch(numbers)
            origins = torch.arange(len(numbers), device=self.device) if self.order is None else self.order
            state.select(origins.repeat_interleave(copies))
            for number in found:
                self.sequences[number].state, self.sequences[number].steps = None, []
            self.rows, self.stepping = found, []
        return found

    def select(self, sequences: Sequence[int], origins: Tensor) -> None:
        if not self.batched:
            states = [self.own_state(sequences[origin]).fork() for origin in origins.tolist()]
            for number, state in zip(sequences, states, strict=True):
                self.sequences[number].state = state
            return
        batch = self.form_batch(sequences)
        rows = origins
        if self.order is not None:
            rows = origins.new_zeros(len(origins)).index_copy_(0, self.order, self.order[origins])
        batch.reorder(rows)
        if self.prefix_cache:
            for number in sequences:
                self.sequences[number].fetch_tokens()
            tokens = [list(self.sequences[sequences[origin]].tokens) for origin in origins.tolist()]
            for number, new in zip(sequences, tokens, strict=True):
                self.sequences[number].tokens = new
            self.stepping = []  # tokens of further steps are recorded separately

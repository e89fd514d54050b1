"""The one way to decode: a store holds numbered sequences and what the model has cached of them.

`generate`, beam search, speculation and the serving engine all talk to a `SequenceStore`. Which one serves them depends
on what the model and the device can do: `EagerStore` runs every part as it is, `StaticStore` keeps attention's keys and
values in slots of shared buffers, `CompiledStore` runs a compiled step or our own C++ over such buffers, and
`GraphStore` a step recorded on a GPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.core.model import Seq2Seq
from anyformer.errors import UserError
from anyformer.generation.prompts import max_positions
from anyformer.generation.runners.eager import EncoderOutput, LanguageModel, compute_logits

UNBOUNDED = 4096  # tokens of a sequence where the model has no limit of its own and none is given

Source = Sequence[int] | EncoderOutput
SourceKey = tuple[int, ...] | EncoderOutput | None  # by which a cached prefix is found


class Added(NamedTuple):
    """A sequence that was added, and how many of its prompt's first tokens are in the KV cache already."""

    number: int
    cached: int


class SequenceStore(ABC):
    """Sequences by number, each with its own length. One thread uses a store."""

    model: LanguageModel
    capacity: int  # sequences held at once
    limit: int  # tokens a sequence may have, prompt and output together
    can_resume: bool = False  # whether a sequence added again after `free` continues as if it had never left
    batches_prefill: bool = False  # whether `extend` runs the tokens of several sequences in one pass

    @abstractmethod
    def add(self, prompt: Sequence[int], *, source: Source | None = None, scope: str = "") -> Added:
        """Reserve a sequence for a prompt, of which `cached` tokens, never all, need not be run again.

        `source` is what an encoder-decoder answers. Only sequences of the same `scope` share what is cached: what one
        user's prompts cost must not be felt by another.
        """

    @abstractmethod
    def extend(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        """Run the next tokens of some sequences; hidden states (T,D) of each."""

    def prefill(self, prompts: Mapping[int, Sequence[int]]) -> Tensor:
        """Run the prompts of some sequences; logits (N,V) of the token that follows each."""
        return self.logits(torch.stack([hidden[-1] for hidden in self.extend(prompts)]))

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (N,V) of the tokens that follow hidden states (N,D)."""
        return compute_logits(self.model, hidden[:, None])[:, 0]

    @abstractmethod
    def step(self, sequences: Sequence[int], tokens: Tensor) -> Tensor:
        """Run one more token (N,) of each of these sequences; logits (N,V) of the next."""

    @abstractmethod
    def length(self, sequence: int) -> int:
        """Tokens of a sequence that were run."""

    @abstractmethod
    def truncate(self, sequence: int, length: int) -> None:
        """Forget all but the first tokens of a sequence, which will never be truncated to fewer."""

    @abstractmethod
    def fork(self, copies: int) -> list[int]:
        """Every sequence `copies` times; their numbers, copies of one sequence next to each other."""

    @abstractmethod
    def select(self, sequences: Sequence[int], origins: Tensor) -> None:
        """Sequence i of these goes on from what sequence `origins[i]` (N,) of them holds: a beam of the same prompt."""

    @abstractmethod
    def free(self, sequence: int, *, keep: bool = True) -> None:
        """Give up a sequence. Unless told otherwise, what is cached of it serves later prompts until room is needed."""

    @property
    @abstractmethod
    def available(self) -> int:
        """Sequences that can be added now."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory of the KV cache."""

    def check_available(self) -> None:
        if not self.available:
            raise UserError(f"all {self.capacity} slots are taken", fix="free a sequence first")

    def check_fork(self, count: int) -> None:
        if count > self.capacity:
            raise UserError(f"{count} sequences do not fit {self.capacity}", fix="use more capacity")

    def check_length(self, length: int) -> None:
        if length > self.limit:
            raise UserError(f"{length} tokens do not fit a slot of {self.limit}", fix="free it, or use a larger limit")


@dataclass(eq=False)
class CachedTokens:
    """`length` tokens of one scope, run after one source."""

    scope: str = ""
    source: SourceKey = None  # of an encoder-decoder
    length: int = 0
    tokens: list[int] = field(default_factory=list)  # as far as the CPU knows them
    steps: list[tuple[list[Tensor], int]] = field(default_factory=list)  # those after: tokens (N,), and which of them

    def append(self, tokens: Sequence[int]) -> None:
        """Note tokens that were run."""
        self.fetch_tokens()
        if len(self.tokens) == self.length:
            self.tokens += tokens
        self.length += len(tokens)

    def fetch_tokens(self) -> None:
        """Bring to the CPU what decode steps have added since, where that was recorded."""
        for tokens, which in self.steps:
            self.tokens += torch.stack(tokens)[:, which].tolist() if tokens else []
        self.steps = []

    def truncate(self, length: int) -> None:
        """Forget all but the first tokens."""
        self.fetch_tokens()
        self.length, self.tokens = length, self.tokens[:length]


def check_limit(model: LanguageModel, limit: int | None) -> int:
    """Tokens a sequence may have: what is asked for, within what the model has positions for."""
    decoder = model.spec.decoder if isinstance(model.spec, Seq2Seq) else model.spec
    most, why = max_positions(decoder)
    if limit is not None and most is not None and limit > most:
        raise UserError(f"a context of {limit} tokens is more than {most} {why}", fix=f"use {most}")
    return limit if limit is not None else UNBOUNDED if most is None else most


def extend_in_chunks(store: SequenceStore, pieces: Mapping[int, Sequence[int]], chunk: int) -> dict[int, Tensor]:
    """Run pieces of any length `chunk` tokens at a time; hidden states of the last chunk of each, (T,D)."""
    last: dict[int, Tensor] = {}
    at = 0
    while part := {number: piece[at : at + chunk] for number, piece in pieces.items() if len(piece) > at}:
        last |= dict(zip(part, store.extend(part), strict=True))
        for number, piece in part.items():
            if at + len(piece) < len(pieces[number]):
                store.truncate(number, store.length(number))  # what was run so far is final
        at += chunk
    return last


class PackedPieces(NamedTuple):
    """Pieces of different length as one batch, filled up on the right."""

    tokens: list[list[int]]
    positions: list[list[int]]
    columns: list[list[int]]  # of the static cache that they are written to
    end: int  # one column behind all real tokens, where fillers are written and no real token looks


def pack_pieces(
    rows: int, width: int, pieces: Mapping[int, tuple[int, Sequence[int]]], behind: int = 0
) -> PackedPieces:
    """Row by row the start and the tokens of a piece; `behind` is a column that fillers must not be before."""
    end = max(behind, *(start + len(piece) for start, piece in pieces.values()))
    tokens, positions, columns = ([[fill] * width for _ in range(rows)] for fill in (0, 0, end))
    for row, (start, piece) in pieces.items():
        tokens[row][: len(piece)] = piece
        positions[row][: len(piece)] = columns[row][: len(piece)] = range(start, start + len(piece))
    return PackedPieces(tokens, positions, columns, end)

"""The decoding interface: a store holds numbered sequences and their KV caches.

`generate`, beam search, speculative decoding and the serving engine all use a `SequenceStore`. Which one depends on the
model and the device: `EagerStore` runs any part eagerly, `StaticStore` keeps keys and values in slots of shared
buffers, `CompiledStore` runs a compiled step or our own C++ over such buffers, and `GraphStore` replays a CUDA graph.
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

UNBOUNDED = 4096  # default limit on tokens per sequence for models without a limit of their own

Source = Sequence[int] | EncoderOutput
SourceKey = tuple[int, ...] | EncoderOutput | None  # part of the key of a cached prefix


class Added(NamedTuple):
    """A new sequence's number, and how many tokens of its prompt are in the KV cache already."""

    number: int
    cached: int


class SequenceStore(ABC):
    """Sequences by number, each with its own length. Not thread-safe."""

    model: LanguageModel
    capacity: int  # sequences held at once
    limit: int  # tokens a sequence may have, prompt and output together
    can_resume: bool = False  # whether a freed sequence that is added again continues as if never freed
    batches_prefill: bool = False  # whether `extend` runs the tokens of several sequences in one pass

    @abstractmethod
    def add(self, prompt: Sequence[int], *, source: Source | None = None, scope: str = "") -> Added:
        """Reserve a sequence for a prompt, of which `cached` tokens, never all, need not be run again.

        `source` is the encoder's input. Prefixes are shared only within a `scope`: timing must not leak one user's
        prompts to another.
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
        """Number of tokens of a sequence that have been run."""

    @abstractmethod
    def truncate(self, sequence: int, length: int) -> None:
        """Drop all but the first `length` tokens of a sequence; later calls never truncate to fewer."""

    @abstractmethod
    def fork(self, copies: int) -> list[int]:
        """Replicate every sequence; returns the numbers, copies of one sequence adjacent."""

    @abstractmethod
    def select(self, sequences: Sequence[int], origins: Tensor) -> None:
        """Sequence i takes over the cache of sequence `origins[i]` (N,), a beam of the same prompt."""

    @abstractmethod
    def free(self, sequence: int, *, keep: bool = True) -> None:
        """Free a sequence. If `keep`, its cache may be reused as a prefix until the slot is needed."""

    @property
    @abstractmethod
    def available(self) -> int:
        """Number of sequences that can be added now."""

    @property
    @abstractmethod
    def bytes(self) -> int:
        """Memory of the KV cache, in bytes."""

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
    """The tokens in the KV cache of a sequence or freed slot, with their scope and source."""

    scope: str = ""
    source: SourceKey = None  # of an encoder-decoder
    length: int = 0
    tokens: list[int] = field(default_factory=list)  # those known on the CPU
    steps: list[tuple[list[Tensor], int]] = field(default_factory=list)  # the others: (N,) per step, and row

    def append(self, tokens: Sequence[int]) -> None:
        """Record tokens that were run."""
        self.fetch_tokens()
        if len(self.tokens) == self.length:
            self.tokens += tokens
        self.length += len(tokens)

    def fetch_tokens(self) -> None:
        """Copy the tokens of decode steps to the CPU."""
        for tokens, which in self.steps:
            self.tokens += torch.stack(tokens)[:, which].tolist() if tokens else []
        self.steps = []

    def truncate(self, length: int) -> None:
        """Drop all but the first `length` tokens."""
        self.fetch_tokens()
        self.length, self.tokens = length, self.tokens[:length]


def check_limit(model: LanguageModel, limit: int | None) -> int:
    """Maximal tokens per sequence: the requested limit, checked against the model's positions."""
    decoder = model.spec.decoder if isinstance(model.spec, Seq2Seq) else model.spec
    most, why = max_positions(decoder)
    if limit is not None and most is not None and limit > most:
        raise UserError(f"a context of {limit} tokens is more than {most} {why}", fix=f"use {most}")
    return limit if limit is not None else UNBOUNDED if most is None else most


def extend_in_chunks(store: SequenceStore, pieces: Mapping[int, Sequence[int]], chunk: int) -> dict[int, Tensor]:
    """Run pieces of any length `chunk` tokens at a time; returns the hidden states (T,D) of each one's last chunk."""
    last: dict[int, Tensor] = {}
    at = 0
    while part := {number: piece[at : at + chunk] for number, piece in pieces.items() if len(piece) > at}:
        last |= dict(zip(part, store.extend(part), strict=True))
        for number, piece in part.items():
            if at + len(piece) < len(pieces[number]):
                store.truncate(number, store.length(number))  # no truncation below this point
        at += chunk
    return last


class PackedPieces(NamedTuple):
    """Pieces of different lengths as one right-padded batch."""

    tokens: list[list[int]]
    positions: list[list[int]]
    columns: list[list[int]]  # columns of the static cache to write to
    end: int  # a column after all real tokens, where padding is written and which no real token sees


def pack_pieces(
    rows: int, width: int, pieces: Mapping[int, tuple[int, Sequence[int]]], behind: int = 0
) -> PackedPieces:
    """Pack pieces given as (start, tokens) by row; padding is written at column `behind` or later."""
    end = max(behind, *(start + len(piece) for start, piece in pieces.values()))
    tokens, positions, columns = ([[fill] * width for _ in range(rows)] for fill in (0, 0, end))
    for row, (start, piece) in pieces.items():
        tokens[row][: len(piece)] = piece
        positions[row][: len(piece)] = columns[row][: len(piece)] = range(start, start + len(piece))
    return PackedPieces(tokens, positions, columns, end)

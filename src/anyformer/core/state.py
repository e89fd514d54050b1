"""Decoding state: the KV caches and recurrent states of all layers, so that a new token costs one decode step.

A model's `State` holds, per layer, one object for its mixer and one for its cross-attention, each made by the part
that owns it, and once for all layers the positions, indices and padding mask of the keys so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor

from anyformer.core.context import count
from anyformer.core.join_states import join_memories, join_records, pad_left, pad_right, tensors_in
from anyformer.errors import UserError


class PartState(Protocol):
    """Decoding state of one mixer."""

    def select(self, rows: Tensor) -> None:
        """Select rows of the batch, in this order (beam search repeats some and drops others)."""

    def truncate(self, length: int) -> None:
        """Drop everything after the first `length` tokens (rejected draft tokens of speculative decoding)."""

    def join(self, others: Sequence[Self]) -> None:
        """Append the rows of other states, left-padded to a common length."""

    def trim(self, columns: int) -> None:
        """Drop all but the newest `columns` tokens, where older ones are padding in every row."""

    @property
    def span(self) -> int:
        """How many of the newest tokens it still needs positions, padding and documents for."""

    @property
    def bytes(self) -> int:
        """Memory of the cached tokens, in bytes."""


BLOCK = 64  # a growing cache is enlarged by this many tokens or by half its size: few copies, little waste


@dataclass
class KVCache:
    """Keys and values of earlier tokens, (B,G,S,C) and (B,G,S,C'), in buffers that grow or are allocated once."""

    limit: int | None = None  # preallocate this many tokens; None grows
    length: int = 0  # tokens seen
    held: int = 0  # tokens in the buffers: the newest `held` of them
    stale: int = 0  # how many of the oldest of those no query can see any more; the next move overwrites them
    keys: Tensor | None = None
    values: Tensor | None = None

    def update(self, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """Append new keys and values; return all cached ones, newest last.

        With a `window`, tokens that no query can see any more are dropped, so memory stays flat on endless text.
        """
        new = k.shape[2]
        if window is not None:  # the first new query sees window - 1 tokens behind it
            self.stale = max(self.stale, self.held - (window - 1))
        self.reserve(k, v, new)
        assert self.keys is not None and self.values is not None
        self.keys[:, :, self.held : self.held + new] = k
        self.values[:, :, self.held : self.held + new] = v
        self.held += new
        self.length += new
        return self.keys[:, :, self.stale : self.held], self.values[:, :, self.stale : self.held]

    def reserve(self, k: Tensor, v: Tensor, new: int) -> None:
        """Make room for `new` tokens: in the existing buffers, by moving over stale ones, or by reallocating."""
        capacity = 0 if self.keys is None else self.keys.shape[2]
        live = self.held - self.stale
        needed = live + new
        # A long prompt leaves buffers that a window never needs again.
        roomy = self.limit is None and self.stale > 0 and capacity > 4 * (needed + BLOCK)
        if self.held + new <= capacity and not roomy:
            return
        # Move only once enough is stale; otherwise every new token would move all the others.
        moves = needed <= capacity and self.stale >= min(BLOCK, live) and not roomy
        if self.limit is not None:
            size = max(needed, self.limit)
        else:
            size = max(needed, (needed if roomy else capacity) + max(BLOCK, (needed if roomy else capacity) // 2))
        self.keys = move_tokens(self.keys, k, self.stale, self.held, None if moves else size)
        self.values = move_tokens(self.values, v, self.stale, self.held, None if moves else size)
        self.held, self.stale = live, 0

    def select(self, rows: Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys = select_rows(self.keys, rows, self.stale, self.held)
            self.values = select_rows(self.values, rows, self.stale, self.held)

    def truncate(self, length: int) -> None:
        gone = self.length - length
        if gone <= 0:
            return
        if self.held - self.stale < self.length:
            raise UserError(
                "a rolling cache cannot be truncated: older tokens were dropped",
                fix="make the state with rolling=False",
            )
        self.held, self.length = self.held - gone, length  # stale tokens stay in front

    def join(self, others: Sequence[Self]) -> None:
        parts = [self, *others]
        most = max(part.span for part in parts)
        size = max(most + BLOCK, self.limit or 0)
        keys = [part.keys[:, :, part.stale : part.held] for part in parts if part.keys is not None]
        values = [part.values[:, :, part.stale : part.held] for part in parts if part.values is not None]
        if keys and values:
            self.keys, self.values = pad_left(keys, most, size), pad_left(values, most, size)
        self.held, self.stale, self.length = most, 0, max(part.length for part in parts)

    def trim(self, columns: int) -> None:
        self.stale = max(self.stale, self.held - columns)
        self.length = min(self.length, columns)

    @property
    def span(self) -> int:
        return self.held - self.stale

    @property
    def bytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        token = self.keys[:, :, :1].numel() * self.keys.element_size()
        token += self.values[:, :, :1].numel() * self.values.element_size()
        return token * (self.held - self.stale)


def move_tokens(buffer: Tensor | None, like: Tensor, start: int, stop: int, size: int | None) -> Tensor:
    """Move the tokens from `start` to `stop` to the front of the same buffer, or of a new one of `size` columns."""
    if buffer is None:
        assert size is not None
        return like.new_zeros(*like.shape[:2], size, like.shape[3])
    kept = buffer[:, :, start:stop]
    fresh = buffer if size is None else buffer.new_zeros(*buffer.shape[:2], size, buffer.shape[3])
    fresh[:, :, : stop - start] = kept.clone() if size is None else kept  # old and new place may overlap
    return fresh


def select_rows(buffer: Tensor, rows: Tensor, start: int, stop: int) -> Tensor:
    """A buffer of the same length with these rows; only the tokens in use are copied."""
    fresh = buffer.new_zeros(rows.shape[0], *buffer.shape[1:])
    fresh[:, :, start:stop] = buffer[:, :, start:stop].index_select(0, rows)
    return fresh


@dataclass
class CrossKVCache:
    """Keys and values of the encoder's output, computed once per source."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def truncate(self, length: int) -> None:
        """Nothing to do: the encoder's output does not depend on how much has been decoded."""

    def join(self, others: Sequence[Self]) -> None:
        parts = [self, *others]
        keys = [part.keys for part in parts if part.keys is not None]
        values = [part.values for part in parts if part.values is not None]
        if keys and values:
            self.keys, self.values = pad_right(keys, 2), pad_right(values, 2)

    def trim(self, columns: int) -> None:
        """Nothing to do: nor does it depend on padding of the decoded tokens."""

    @property
    def span(self) -> int:
        return 1

    @property
    def bytes(self) -> int:
        parts = (self.keys, self.values)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)


@dataclass
class LayerState:
    """Decoding state of one block."""

    mixer: PartState | None
    cross: PartState | None = None


@dataclass
class State:
    """Decoding state of a whole model for one batch. Made by `model.state(...)`, updated in place by each pass."""

    layers: list[LayerState]
    batch: int
    limit: int | None = None
    length: int = 0  # tokens so far, padding included
    index: Tensor | None = None  # (B or 1, S) index of each token among the real ones of its row
    positions: Tensor | None = None  # (B or 1, S)
    mask: Tensor | None = None  # (B, S)
    documents: Tensor | None = None  # (B, S)
    memory: Tensor | None = None
    memory_mask: Tensor | None = None
    rolling: bool = True  # windowed layers may drop tokens that no query can see any more
    sources: Tensor | None = None  # (1, S) which part of a joint sequence each token is from
    counts: Tensor | None = field(default=None, repr=False)  # (B, 1) real tokens so far, once there is padding
    holed: Tensor | None = field(default=None, repr=False)  # whether some row has padding behind a real token

    gaps: bool = False  # a growing cache has no unused columns between keys (a static cache has)

    def extend(
        self,
        batch: int,
        length: int,
        device: torch.device,
        mask: Tensor | None,
        documents: Tensor | None,
        positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Record new tokens; return positions, index, mask and documents of all tokens any layer may still hold."""
        if batch != self.batch:
            raise UserError(
                f"the state was made for batch {self.batch}, got batch {batch}", fix=f"make it with state({batch})"
            )
        if self.limit is not None and self.length + length > self.limit:
            raise UserError(
                f"{self.length} tokens are held and {length} more do not fit a state made for {self.limit}",
                fix=f"make it with state(batch, limit={self.length + length})",
            )
        if (documents is None) != (self.documents is None) and self.length:
            raise UserError("documents are given for some passes of one state only", fix="give them for every pass")
        if self.holed is not None:
            # Padding between tokens: the newest keys of a row are then not its last tokens, so nothing may be dropped.
            self.rolling = self.rolling and not bool(self.holed)
        self.forget()
        known = 0 if self.index is None else self.index.shape[1]
        if mask is not None or self.mask is not None:
            if self.mask is None:
                self.mask = torch.ones(batch, known, dtype=torch.bool, device=device)
                self.counts = torch.full((batch, 1), self.length, device=device)
            new = mask if mask is not None else self.mask.new_ones(batch, length)
            self.mask = torch.cat([self.mask, new], 1)
        self.holed = None if mask is None or self.mask is None else (self.mask[:, :-1] & ~self.mask[:, 1:]).any()
        if documents is not None:
            self.documents = documents if self.documents is None else torch.cat([self.documents, documents], 1)
        own = self.positions is None or self.positions is self.index  # no explicit positions so far
        self.index = self.counted(batch, known, length, device, mask)
        if own and positions is None:
            self.positions = self.index
        else:
            placed = self.index[:, -length:] if positions is None else positions
            before = self.index[:, :known] if own else self.positions
            self.positions = placed if before is None or not known else join(before, placed)
        self.length += length
        assert self.positions is not None
        return self.positions, self.index, self.mask, self.documents

    def newest(self, length: int) -> Tensor:
        """Index of the tokens recorded last, (B or 1, T)."""
        assert self.index is not None
        return self.index[:, -length:]

    def counted(self, batch: int, known: int, length: int, device: torch.device, mask: Tensor | None) -> Tensor:
        """Index of the `known` recorded tokens and of the new ones, which continue the count."""
        if self.documents is not None:
            return count(batch, known + length, device, self.mask, self.documents)
        if self.counts is None:
            return torch.arange(self.length - known, self.length + length, device=device)[None]
        if mask is None:
            new = self.counts + torch.arange(length, device=device)
            self.counts = self.counts + length
        else:
            new = (self.counts + mask.cumsum(1) - 1).clamp(min=0)
            self.counts = self.counts + mask.sum(1, keepdim=True)
        return new if self.index is None else join(self.index, new)

    def forget(self) -> None:
        """Drop the records of tokens that no layer holds any more, so that memory stays flat on endless text."""
        if self.index is None or not self.rolling or self.documents is not None or self.sources is not None:
            return
        parts = [layer.mixer for layer in self.layers]
        held = max((1 if part is None else max(1, part.span) for part in parts), default=1)
        if self.index.shape[1] - held < BLOCK:
            return
        own = self.positions is self.index
        self.index = self.index[:, self.index.shape[1] - held :]
        if own or self.positions is None:
            self.positions = self.index
        else:
            self.positions = self.positions[:, self.positions.shape[1] - held :]
        if self.mask is not None:
            self.mask = self.mask[:, self.mask.shape[1] - held :]

    def count_of(self, source: int) -> Tensor:
        """Real tokens so far of one part of a joint sequence, (B or 1, 1)."""
        assert self.sources is not None
        real = self.sources == source
        return (real if self.mask is None else real & self.mask).sum(1, keepdim=True)

    def select(self, rows: Tensor) -> Self:
        """Select rows of the batch, in this order."""
        for layer in self.layers:
            for part in (layer.mixer, layer.cross):
                if part is not None:
                    part.select(rows)
        own = self.positions is self.index
        for name in ("index", "positions", "mask", "documents", "memory", "memory_mask", "counts"):
            value = getattr(self, name)
            if value is not None and value.shape[0] == self.batch:  # one row for all of a larger batch stays
                setattr(self, name, value[rows])
        self.positions = self.index if own else self.positions
        self.batch = rows.shape[0]
        return self

    def reorder(self, rows: Tensor) -> Self:
        """`select` for rows that only move among rows of the same prompt and source: beams of one request.

        Padding, positions and the encoder's output are the same in all of them and are left untouched.
        """
        for layer in self.layers:
            if layer.mixer is not None:
                layer.mixer.select(rows)
        return self

    def join(self, others: Sequence[State]) -> Self:
        """Append the rows of other states, left-padded to a common length."""
        states: list[State] = [self, *others]
        for state in states:
            if state.documents is not None or state.sources is not None or state.index is None:
                raise UserError("only texts that have begun and are not packed or joint sequences can be joined",
                                fix="decode them apart")  # fmt: skip
            self.rolling = self.rolling and state.rolling and not (state.holed is not None and bool(state.holed))
        for layer, *rest in zip(*(state.layers for state in states), strict=True):
            if layer.mixer is not None:
                layer.mixer.join([other.mixer for other in rest if other.mixer is not None])
            if layer.cross is not None:
                layer.cross.join([other.cross for other in rest if other.cross is not None])
        self.index, self.positions, self.mask, self.counts = join_records(states)
        self.memory, self.memory_mask = join_memories(states)
        self.length, self.holed = max(state.length for state in states), None
        self.batch = sum(state.batch for state in states)
        return self

    def trim(self, columns: int) -> Self:
        """Drop all but the newest `columns` tokens, where older ones are padding in every row."""
        for layer in self.layers:
            if layer.mixer is not None:
                layer.mixer.trim(columns)
        self.length = min(self.length, columns)
        own = self.positions is self.index
        for name in ("index", "positions", "mask"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value[:, -columns:])
        self.positions = self.index if own else self.positions
        if self.mask is not None and self.counts is not None and self.index is not None and own:
            if bool(self.mask.all()) and bool((self.counts == self.length).all()):  # no padding is left
                self.mask = self.counts = None
                self.index = self.positions = self.index[:1]
        return self

    def truncate(self, length: int) -> Self:
        """Drop everything after the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise UserError(f"cannot keep {length} of {self.length} tokens", fix=f"give 0 to {self.length}")
        for layer in self.layers:
            if layer.mixer is not None:
                layer.mixer.truncate(length)
        self.length = length
        own = self.positions is self.index
        for name in ("index", "positions", "mask", "documents", "sources"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value[:, :length] if length else None)
        self.positions = self.index if own else self.positions
        self.counts = None if self.mask is None else self.mask.sum(1, keepdim=True)
        return self

    def fork(self) -> State:
        """An independent copy."""
        import copy

        return copy.deepcopy(self)

    def copy_rows(self, rows: Tensor) -> State:
        """An independent copy of these rows."""
        import copy

        return copy.deepcopy(self, {id(part): part for part in tensors_in(self)}).select(rows)  # which copies

    @property
    def bytes(self) -> int:
        """Memory of all layers' caches, in bytes."""
        parts = [part for layer in self.layers for part in (layer.mixer, layer.cross) if part is not None]
        return sum(part.bytes for part in parts)


def join(old: Tensor, new: Tensor) -> Tensor:
    """Concatenate along time two tensors whose first axis is B or 1."""
    batch = max(old.shape[0], new.shape[0])
    return torch.cat([old.expand(batch, -1), new.expand(batch, -1)], 1)

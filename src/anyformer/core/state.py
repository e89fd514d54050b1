"""Decoding state: what the layers remember of earlier tokens, so that a new token costs one step.

A model's `State` holds one object a layer for its mixer and its cross-attention, each made by the part that owns it,
and once for all layers the positions, ranks and padding of the keys so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
from torch import Tensor

from anyformer.core.context import count
from anyformer.errors import UserError


class PartState(Protocol):
    """What one mixer remembers."""

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order (beam search repeats some and drops others)."""

    def keep(self, length: int) -> None:
        """Forget everything after the first `length` tokens (speculation takes back what was refused)."""

    @property
    def bytes(self) -> int:
        """Memory of the tokens held."""


BLOCK = 64  # a growing cache is enlarged by this many tokens, then by half its size: few copies, little waste


@dataclass
class Keys:
    """Keys and values of earlier tokens, (B,G,S,C) and (B,G,S,C'), in buffers that grow or are allocated once."""

    limit: int | None = None  # allocate this many at once; None grows
    length: int = 0  # tokens seen
    held: int = 0  # tokens in the buffers: the newest `held` of them
    keys: Tensor | None = None
    values: Tensor | None = None

    def update(self, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """Append new keys and values; return all that are held, newest last.

        With a `window`, what no query can see any more is dropped first, so memory stays flat on endless text.
        """
        new = k.shape[2]
        if window is not None:  # the first new query sees window - 1 tokens behind it
            self.drop(max(0, self.held - (window - 1)))
        self.reserve(k, v, self.held + new)
        assert self.keys is not None and self.values is not None
        self.keys[:, :, self.held : self.held + new] = k
        self.values[:, :, self.held : self.held + new] = v
        self.held += new
        self.length += new
        return self.keys[:, :, : self.held], self.values[:, :, : self.held]

    def drop(self, oldest: int) -> None:
        if oldest == 0 or self.keys is None or self.values is None:
            return
        kept = self.held - oldest
        for buffer in (self.keys, self.values):
            buffer[:, :, :kept] = buffer[:, :, oldest : self.held].clone()
        self.held = kept

    def reserve(self, k: Tensor, v: Tensor, needed: int) -> None:
        capacity = 0 if self.keys is None else self.keys.shape[2]
        if needed <= capacity:
            return
        size = max(needed, capacity + max(BLOCK, capacity // 2)) if self.limit is None else max(needed, self.limit)
        old_k, old_v = self.keys, self.values
        self.keys = k.new_zeros(*k.shape[:2], size, k.shape[3])
        self.values = v.new_zeros(*v.shape[:2], size, v.shape[3])
        if old_k is not None and old_v is not None:
            self.keys[:, :, : self.held] = old_k[:, :, : self.held]
            self.values[:, :, : self.held] = old_v[:, :, : self.held]

    def select(self, rows: Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def keep(self, length: int) -> None:
        gone = self.length - length
        if gone <= 0:
            return
        if self.held < self.length:
            raise UserError(
                "a rolling cache has dropped what going back would need", fix="make the state with rolling=False"
            )
        self.held = self.length = length

    @property
    def bytes(self) -> int:
        if self.keys is None or self.values is None:
            return 0
        token = self.keys[:, :, :1].numel() * self.keys.element_size()
        token += self.values[:, :, :1].numel() * self.values.element_size()
        return token * self.held


@dataclass
class Memory:
    """Keys and values of the encoder's output, computed once a text."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def keep(self, length: int) -> None:
        """The encoder's output does not depend on how much has been decoded."""

    @property
    def bytes(self) -> int:
        parts = (self.keys, self.values)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)


@dataclass
class LayerState:
    """What one block remembers."""

    mixer: PartState | None
    cross: PartState | None = None


@dataclass
class State:
    """What a whole model remembers of one batch of texts. Made by `model.state(...)`, changed by each pass."""

    layers: list[LayerState]
    batch: int
    limit: int | None = None
    length: int = 0  # tokens so far, padding included
    index: Tensor | None = None  # (B or 1, S) rank of each token among the real ones of its row
    positions: Tensor | None = None  # (B or 1, S)
    mask: Tensor | None = None  # (B, S)
    documents: Tensor | None = None  # (B, S)
    memory: Tensor | None = None
    memory_mask: Tensor | None = None
    rolling: bool = True  # windowed layers may drop what no query can see any more
    sources: Tensor | None = None  # (1, S) which part of a joint sequence each token is from
    holed: Tensor | None = field(default=None, repr=False)  # whether some row has padding behind a real token

    def extend(
        self,
        batch: int,
        length: int,
        device: torch.device,
        mask: Tensor | None,
        documents: Tensor | None,
        positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Record new tokens; return positions, index, mask and documents of all tokens so far."""
        if batch != self.batch:
            raise UserError(f"a batch of {batch} texts meets a state for {self.batch}", fix=f"make it with state({batch})")
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
        if mask is not None or self.mask is not None:
            old = (
                self.mask if self.mask is not None else torch.ones(batch, self.length, dtype=torch.bool, device=device)
            )
            new = mask if mask is not None else torch.ones(batch, length, dtype=torch.bool, device=device)
            self.mask = torch.cat([old, new], 1)
        self.holed = None if mask is None or self.mask is None else (self.mask[:, :-1] & ~self.mask[:, 1:]).any()
        if documents is not None:
            self.documents = documents if self.documents is None else torch.cat([self.documents, documents], 1)
        self.index = self.counted(batch, length, device)
        placed = self.index[:, -length:] if positions is None else positions
        self.positions = placed if self.positions is None else join(self.positions, placed)
        self.length += length
        return self.positions, self.index, self.mask, self.documents

    def counted(self, batch: int, length: int, device: torch.device) -> Tensor:
        if self.mask is None and self.documents is None:
            return torch.arange(self.length + length, device=device)[None]
        return count(batch, self.length + length, device, self.mask, self.documents)

    def count_of(self, source: int) -> Tensor:
        """Real tokens so far of one part of a joint sequence, (B or 1, 1)."""
        assert self.sources is not None
        real = self.sources == source
        return (real if self.mask is None else real & self.mask).sum(1, keepdim=True)

    def select(self, rows: Tensor) -> Self:
        """Keep these rows of the batch, in this order."""
        for layer in self.layers:
            for part in (layer.mixer, layer.cross):
                if part is not None:
                    part.select(rows)
        for name in ("index", "positions", "mask", "documents", "memory", "memory_mask"):
            value = getattr(self, name)
            if value is not None and value.shape[0] == self.batch:  # one row for all stays as it is, unless it is the batch
                setattr(self, name, value[rows])
        self.batch = rows.shape[0]
        return self

    def keep(self, length: int) -> Self:
        """Forget everything after the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise UserError(f"cannot keep {length} of {self.length} tokens", fix=f"give 0 to {self.length}")
        for layer in self.layers:
            if layer.mixer is not None:
                layer.mixer.keep(length)
        self.length = length
        for name in ("index", "positions", "mask", "documents", "sources"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value[:, :length] if length else None)
        return self

    def fork(self) -> State:
        """An independent copy: what is decoded with one does not change the other."""
        import copy

        return copy.deepcopy(self)

    @property
    def bytes(self) -> int:
        """Memory of what the layers hold."""
        parts = [part for layer in self.layers for part in (layer.mixer, layer.cross) if part is not None]
        return sum(part.bytes for part in parts)


def join(old: Tensor, new: Tensor) -> Tensor:
    """Concatenate along time two tensors whose first axis is B or 1."""
    batch = max(old.shape[0], new.shape[0])
    return torch.cat([old.expand(batch, -1), new.expand(batch, -1)], 1)

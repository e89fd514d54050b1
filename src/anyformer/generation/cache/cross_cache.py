"""Cross-attention KV cache of an encoder-decoder: keys and values of each source in the slot of its sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.static_cache import StaticCache
from anyformer.errors import UserError
from anyformer.generation.cache.slots import Slot
from anyformer.generation.cache.store import Source
from anyformer.generation.runners.eager import decoder_blocks, encode

if TYPE_CHECKING:
    from anyformer.generation.cache.static_store import StaticStore


class CrossCache:
    """Keys and values of the encoder's output in slots, for sources of different lengths."""

    def __init__(self, store: StaticStore) -> None:
        self.model, self.device, self.strict = store.model, store.device, store.strict
        spec: Any = store.model.spec
        encoder = spec.encoder
        self.crosses = [block.cross for block in decoder_blocks(store.model)]
        self.width = (encoder.embed.limit or store.limit) if store.strict else 1
        self.layers = [
            None if cross is None else cross.static_cache(store.rows, self.width, store.device, store.dtype)
            for cross in self.crosses
        ]
        self.lengths = [0] * store.capacity
        self.mask = torch.zeros(store.rows, self.width, dtype=torch.bool, device=store.device)
        self.blank = torch.zeros(1, 1, 1, device=store.device, dtype=store.dtype).expand(1, 1, encoder.stack.out_width)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers if layer is not None)

    def put(self, slot: int, source: Source, origin: int | None) -> None:
        """Fill a slot: encode the source, or copy from the slot `origin`."""
        if origin is None:
            encoded = encode(self.model, source)
            memory = encoded.hidden if encoded.mask is None else encoded.hidden[:, encoded.mask[0]]
            if self.strict and memory.shape[1] > self.width:
                raise UserError(f"a source of {memory.shape[1]} tokens is more than {self.width}", fix="shorten it")
            self.reserve(len(self.mask), memory.shape[1])
            for cross, layer in zip(self.crosses, self.layers, strict=True):
                if layer is not None:
                    layer.put(slot, *cross.split(cross.kv(memory)))
            self.lengths[slot] = memory.shape[1]
        elif origin != slot:
            for layer in self.layers:
                if layer is not None:
                    layer.copy_row(origin, slot, self.lengths[origin])
            self.lengths[slot] = self.lengths[origin]
        self.mask[slot] = torch.arange(self.width, device=self.device) < self.lengths[slot]

    def reserve(self, rows: int, columns: int) -> None:
        if rows <= len(self.mask) and columns <= self.width:
            return
        self.width = self.width if columns <= self.width else max(columns, 2 * self.width)
        for layer in self.layers:
            if layer is not None:
                layer.resize(rows, self.width)
        had, self.mask = self.mask, torch.zeros(rows, self.width, dtype=torch.bool, device=self.device)
        self.mask[: had.shape[0], : had.shape[1]] = had

    def swap(self, one: int, other: int) -> None:
        columns = max(self.lengths[one], self.lengths[other])
        for layer in self.layers:
            if layer is not None:
                layer.swap_rows(one, other, columns)
        self.mask[[one, other]] = self.mask[[other, one]]
        self.lengths[one], self.lengths[other] = self.lengths[other], self.lengths[one]

    def columns_for(self, slots: Sequence[Slot]) -> int:
        return self.width if self.strict else max(self.lengths[slot.index] for slot in slots)

    def views(self, rows: slice, slots: Sequence[Slot]) -> list[StaticCache | None]:
        columns = self.columns_for(slots)
        return [None if layer is None else layer.part(rows, columns) for layer in self.layers]

    def shape(self, rows: slice, slots: Sequence[Slot]) -> tuple[Tensor, Tensor | None]:
        """A placeholder for the encoder's output (only its shape is used, keys and values are cached), and its mask."""
        columns, count = self.columns_for(slots), rows.stop - rows.start
        even = not self.strict and count == len(slots) and all(self.lengths[slot.index] == columns for slot in slots)
        return self.blank.expand(count, columns, -1), None if even else self.mask[rows, :columns]

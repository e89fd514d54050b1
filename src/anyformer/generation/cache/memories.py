"""What the rows of an encoder-decoder look at: keys and values of each source in the slot of its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyformer.core.static_cache import Places
from anyformer.errors import UserError
from anyformer.generation.cache.base import encoded
from anyformer.generation.cache.lanes import Lane

if TYPE_CHECKING:
    from anyformer.generation.cache.slots import SlotRows


class Memories:
    """Keys and values of the encoder's output in slots, sources of different length side by side."""

    def __init__(self, rows: SlotRows) -> None:
        self.model, self.device, self.strict = rows.model, rows.device, rows.strict
        encoder = rows.model.spec.encoder
        self.crosses = [block.cross for block in rows.blocks]
        self.width = (encoder.embed.limit or rows.limit) if rows.strict else 1
        self.layers = [
            None if cross is None else cross.places(rows.slots, self.width, rows.device, rows.dtype)
            for cross in self.crosses
        ]
        self.lengths = [0] * rows.capacity
        self.mask = torch.zeros(rows.slots, self.width, dtype=torch.bool, device=rows.device)
        self.blank = torch.zeros(1, 1, 1, device=rows.device, dtype=rows.dtype).expand(1, 1, encoder.stack.out_width)

    @property
    def bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers if layer is not None)

    def put(self, slot: int, source: Sequence[int], like: int | None) -> None:
        """What a slot's row looks at: read by the encoder, or copied from a slot that has it."""
        if like is None:
            memory = encoded(self.model, source)
            if self.strict and memory.shape[1] > self.width:
                raise UserError(f"a source of {memory.shape[1]} tokens is more than {self.width}", fix="shorten it")
            self.reserve(len(self.mask), memory.shape[1])
            for cross, layer in zip(self.crosses, self.layers, strict=True):
                if layer is not None:
                    layer.put(slot, *cross.split(cross.kv(memory)))
            self.lengths[slot] = memory.shape[1]
        elif like != slot:
            for layer in self.layers:
                if layer is not None:
                    layer.copy_row(like, slot, self.lengths[like])
            self.lengths[slot] = self.lengths[like]
        self.mask[slot] = torch.arange(self.width, device=self.device) < self.lengths[slot]

    def reserve(self, slots: int, columns: int) -> None:
        if slots <= len(self.mask) and columns <= self.width:
            return
        self.width = self.width if columns <= self.width else max(columns, 2 * self.width)
        for layer in self.layers:
            if layer is not None:
                layer.resize(slots, self.width)
        had, self.mask = self.mask, torch.zeros(slots, self.width, dtype=torch.bool, device=self.device)
        self.mask[: had.shape[0], : had.shape[1]] = had

    def swap(self, one: int, other: int) -> None:
        columns = max(self.lengths[one], self.lengths[other])
        for layer in self.layers:
            if layer is not None:
                layer.swap_rows(one, other, columns)
        self.mask[[one, other]] = self.mask[[other, one]]
        self.lengths[one], self.lengths[other] = self.lengths[other], self.lengths[one]

    def reach(self, lanes: Sequence[Lane]) -> int:
        return self.width if self.strict else max(self.lengths[lane.slot] for lane in lanes)

    def views(self, slots: slice, lanes: Sequence[Lane]) -> list[Places | None]:
        columns = self.reach(lanes)
        return [None if layer is None else layer.part(slots, columns) for layer in self.layers]

    def shape(self, slots: slice, lanes: Sequence[Lane]) -> tuple[Tensor, Tensor | None]:
        """A memory of the right shape, whose numbers nobody asks for any more, and which of it is real."""
        columns, rows = self.reach(lanes), slots.stop - slots.start
        alike = not self.strict and rows == len(lanes) and all(self.lengths[lane.slot] == columns for lane in lanes)
        return self.blank.expand(rows, columns, -1), None if alike else self.mask[slots, :columns]

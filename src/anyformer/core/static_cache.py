"""The static KV cache, for sequences of different length: token p of a sequence is in column p of its row.

All shapes are constant and all that changes is held in tensors, so a step can be compiled once, or recorded as a CUDA
graph, and sequences may be added, freed and truncated without anything being moved. Columns behind a row's own length
hold what earlier sequences left there: the causal mask hides them (`Context.gaps`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core.state import KVCache, State
from anyformer.errors import UserError


@dataclass
class StaticCache(KVCache):
    """Keys and values of one layer, (B,G,L,C) and (B,G,L,C'), each in the column of its position."""

    at: Tensor | slice | None = None  # (B,T) columns of the next tokens; a slice where all rows have the same
    live: Tensor | None = None  # (M,) the rows that write, and `at` is theirs alone; None for all
    rows: Tensor | None = None  # (M,1) the same for the buffers, made once for all layers and many steps

    @classmethod
    def empty(
        cls, rows: int, columns: int, sizes: tuple[int, int, int], device: torch.device, dtype: torch.dtype
    ) -> StaticCache:
        """Zeros for so many rows and columns; `sizes` are groups, channels of keys and channels of values."""
        groups, channels, value_channels = sizes
        return cls(
            keys=torch.zeros(rows, groups, columns, channels, device=device, dtype=dtype),
            values=torch.zeros(rows, groups, columns, value_channels, device=device, dtype=dtype),
        )

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values, which are there from the start."""
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def update(self, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """Write new keys and values (B,G,T,C) to their columns; return all columns. A window is the mask's business."""
        keys, values = self.buffers
        if isinstance(self.at, slice):
            keys[:, :, self.at], values[:, :, self.at] = k, v
            return keys, values
        assert self.at is not None
        rows = torch.arange(k.shape[0], device=k.device)[:, None] if self.rows is None else self.rows
        if self.live is not None:
            k, v = k[self.live], v[self.live]
        keys[rows, :, self.at] = k.transpose(1, 2)
        values[rows, :, self.at] = v.transpose(1, 2)
        return keys, values

    def part(self, rows: slice, columns: int, at: Tensor | slice | None = None) -> StaticCache:
        """Some rows and the first columns as views: what is written there is written here."""
        keys, values = self.buffers
        return StaticCache(keys=keys[rows, :, :columns], values=values[rows, :, :columns], at=at)

    def put(self, row: int, k: Tensor, v: Tensor) -> None:
        """The first columns of one row, (1,G,S,C)."""
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            buffer[row, :, : new.shape[2]] = new[0]

    def copy_row(self, source: int, target: int, columns: int) -> None:
        """The first columns of one row over those of another."""
        for buffer in self.buffers:
            buffer[target, :, :columns] = buffer[source, :, :columns]

    def swap_rows(self, one: int, other: int, columns: int) -> None:
        """Exchange the first columns of two rows."""
        for buffer in self.buffers:
            held = buffer[one, :, :columns].clone()
            buffer[one, :, :columns] = buffer[other, :, :columns]
            buffer[other, :, :columns] = held

    def resize(self, rows: int, columns: int) -> None:
        """Room for at least so many rows and columns."""
        self.keys, self.values = (larger(buffer, rows, columns) for buffer in self.buffers)

    def select(self, rows: Tensor) -> None:
        self.keys, self.values = (buffer[rows] for buffer in self.buffers)

    def truncate(self, length: int) -> None:
        """Nothing to do: the next tokens are written over what was truncated."""

    @property
    def span(self) -> int:
        return self.buffers[0].shape[2]

    @property
    def bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers)


def larger(buffer: Tensor, rows: int, columns: int) -> Tensor:
    """The same in zeros of at least (rows, G, columns, C): what is hidden must still be a number."""
    had = buffer.shape
    if rows <= had[0] and columns <= had[2]:
        return buffer
    fresh = buffer.new_zeros(max(rows, had[0]), had[1], max(columns, had[2]), had[3])
    fresh[: had[0], :, : had[2]] = buffer
    return fresh


@dataclass
class StaticState(State):
    """One forward pass over a static cache. Positions are given for each pass; nothing is counted."""

    gaps: bool = True  # whether columns behind a row's own length are part of the pass
    new_positions: Tensor | None = None  # (B,T) of the tokens of this pass
    columns: Tensor | None = None  # (1,L) 0, 1, 2, ...: the position of the token in each column

    def extend(
        self,
        batch: int,
        length: int,
        device: torch.device,
        mask: Tensor | None,
        documents: Tensor | None,
        positions: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Positions and index of all columns."""
        if mask is not None or documents is not None or positions is not None:
            raise UserError("a static cache takes no padding, documents or positions of their own",
                            fix="use model.state(batch)")  # fmt: skip
        assert self.columns is not None
        return self.columns, self.columns, None, None

    def newest(self, length: int) -> Tensor:
        assert self.new_positions is not None
        return self.new_positions


def next_power_of_two(count: int) -> int:
    """The next power of two: few sizes, so that little is made anew."""
    return 1 << (count - 1).bit_length()

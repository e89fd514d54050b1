"""The static KV cache, for sequences of different lengths: token p of a sequence is in column p of its row.

All shapes are constant and everything that changes is in tensors, so a decode step can be compiled once or captured as
a CUDA graph, and sequences can be added, freed and truncated without moving data. Columns past a row's own length hold
stale data of earlier sequences, which the causal mask hides (`Context.gaps`).
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

    at: Tensor | slice | None = None  # (B,T) columns of the next tokens; a slice if they are the same in all rows
    live: Tensor | None = None  # (M,) the rows to write, to which `at` then refers; None for all
    rows: Tensor | None = None  # (M,1) the same, to index the buffers; made once for all layers and many steps

    @classmethod
    def empty(
        cls, rows: int, columns: int, sizes: tuple[int, int, int], device: torch.device, dtype: torch.dtype
    ) -> StaticCache:
        """Zeros for this many rows and columns; `sizes` are KV heads, key channels and value channels."""
        groups, channels, value_channels = sizes
        return cls(
            keys=torch.zeros(rows, groups, columns, channels, device=device, dtype=dtype),
            values=torch.zeros(rows, groups, columns, value_channels, device=device, dtype=dtype),
        )

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """The key and value buffers, which always exist."""
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def update(self, k: Tensor, v: Tensor, window: int | None = None) -> tuple[Tensor, Tensor]:
        """Write new keys and values (B,G,T,C) to their columns; return all columns. The mask applies any window."""
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
        """A view of some rows and the first columns: writes to it go to this cache."""
        keys, values = self.buffers
        return StaticCache(keys=keys[rows, :, :columns], values=values[rows, :, :columns], at=at)

    def put(self, row: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values (1,G,S,C) to the first columns of one row."""
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            buffer[row, :, : new.shape[2]] = new[0]

    def copy_row(self, source: int, target: int, columns: int) -> None:
        """Copy the first columns of one row over those of another."""
        for buffer in self.buffers:
            buffer[target, :, :columns] = buffer[source, :, :columns]

    def swap_rows(self, one: int, other: int, columns: int) -> None:
        """Exchange the first columns of two rows."""
        for buffer in self.buffers:
            held = buffer[one, :, :columns].clone()
            buffer[one, :, :columns] = buffer[other, :, :columns]
            buffer[other, :, :columns] = held

    def resize(self, rows: int, columns: int) -> None:
        """Grow to at least this many rows and columns."""
        self.keys, self.values = (larger(buffer, rows, columns) for buffer in self.buffers)

    def select(self, rows: Tensor) -> None:
        self.keys, self.values = (buffer[rows] for buffer in self.buffers)

    def truncate(self, length: int) -> None:
        """Nothing to do: the next tokens overwrite the truncated ones."""

    @property
    def span(self) -> int:
        return self.buffers[0].shape[2]

    @property
    def bytes(self) -> int:
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers)


def larger(buffer: Tensor, rows: int, columns: int) -> Tensor:
    """Grow to at least (rows, G, columns, C), zero-filled: masked entries must still be finite."""
    had = buffer.shape
    if rows <= had[0] and columns <= had[2]:
        return buffer
    fresh = buffer.new_zeros(max(rows, had[0]), had[1], max(columns, had[2]), had[3])
    fresh[: had[0], :, : had[2]] = buffer
    return fresh


@dataclass
class StaticState(State):
    """One forward pass over a static cache. Positions are given for each pass instead of being counted."""

    gaps: bool = True  # whether the pass includes columns past a row's own length
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
    """Round up to a power of two: few distinct sizes, so few recompilations and captures."""
    return 1 << (count - 1).bit_length()

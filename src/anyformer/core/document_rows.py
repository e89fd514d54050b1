"""Lines: unpack every document of every row into a line of its own, starting at its first token, padded on the right.

Mixers that scan the sequence (recurrences, convolutions, long filters) assume that neighbours in memory are neighbours
in the text. Padding, holes and packed documents break that; one line per document restores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from anyformer.core.context import Context, count


@dataclass(frozen=True)
class DocumentLines:
    """Where each of T tokens goes among N lines of one length L: T, or that of the longest document."""

    at: Tensor  # (B,T) flat index of a token in the N x L lines; all padding shares one extra index at the end
    lengths: Tensor  # (N,) real tokens of each line, may be 0
    first: Tensor  # (B,) the line of a row's first document
    last: Tensor  # (B,) and of its last
    length: int  # L

    @classmethod
    def of(cls, context: Context) -> Self | None:
        """Lines of this pass's tokens, or None if there is no padding and no packing."""
        return cls.lay(context.mask, context.documents)

    @classmethod
    def of_keys(cls, context: Context, keys: int) -> Self | None:
        """Lines of the newest `keys` tokens of all passes: those that an input history holds."""
        _, _, mask, documents = context.latest(keys)
        return cls.lay(mask, documents)

    @classmethod
    def lay(cls, mask: Tensor | None, documents: Tensor | None) -> Self | None:
        if mask is None and documents is None:
            return None
        given = mask if mask is not None else documents
        assert given is not None
        batch, length = given.shape
        rows = torch.arange(batch, device=given.device)
        place = count(batch, length, given.device, mask, documents)  # (B,T)
        if documents is None:
            number, most = torch.zeros_like(place), 1
        else:
            number = documents - documents[:, :1]
            most = int(number.max()) + 1
        line = rows[:, None] * most + number
        real = torch.ones_like(line) if mask is None else mask.long()
        lengths = real.new_zeros(batch * most).index_add(0, line.flatten(), real.flatten())
        if documents is not None:  # else many short documents would take as many lines of full length
            length = max(1, int(lengths.max()))
        at = line * length + place
        if mask is not None:
            at = at.where(mask, torch.full_like(at, batch * most * length))
        return cls(at, lengths, rows * most, rows * most + number[:, -1], length)

    def apart(self, x: Tensor) -> Tensor:
        """(B,T,D) to lines (N,L,D), zero-padded."""
        width = x.shape[2]
        cells = x.new_zeros(self.lengths.shape[0] * self.length + 1, width)
        cells = cells.index_copy(0, self.at.flatten(), x.flatten(0, 1))
        return cells[:-1].view(-1, self.length, width)

    def together(self, y: Tensor) -> Tensor:
        """Lines (N,L,D) back to (B,T,D); padding gets 0."""
        batch, length = self.at.shape
        cells = torch.cat([y.reshape(-1, y.shape[-1]), y.new_zeros(1, y.shape[-1])])
        return cells.index_select(0, self.at.flatten()).view(batch, length, -1)

    @property
    def filled(self) -> Tensor:
        """(N,L) True where a line has a token."""
        return torch.arange(self.length, device=self.lengths.device) < self.lengths[:, None]

    def begin(self, remembered: Tensor, context: Context) -> Tensor:
        """Initial state of each line, (N,...): the row's own state (B,...) if its document continues, else 0."""
        start = remembered.new_zeros(self.lengths.shape[0], *remembered.shape[1:])
        return start.index_copy(0, self.first, remembered * goes_on(context, remembered))


def goes_on(context: Context, like: Tensor) -> Tensor:
    """(B,1,...): 1 if the first token of this pass continues the document of the previous pass, else 0."""
    if context.key_documents is None or context.documents is None:
        return like.new_ones(())
    now = context.documents.shape[1]
    if context.key_documents.shape[1] == now:
        return like.new_zeros(())
    same = context.key_documents[:, -now - 1] == context.documents[:, 0]
    return same.to(like.dtype).view(-1, *[1] * (like.dim() - 1))

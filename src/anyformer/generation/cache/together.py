"""Prompts of several rows read in one pass: a pass over a few tokens costs nearly as much as one over many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyformer.core.state import LayerState
from anyformer.core.static_cache import PlacedState, Places
from anyformer.generation.cache.lanes import Lane
from anyformer.generation.runners.eager import hidden_states

if TYPE_CHECKING:
    from anyformer.generation.cache.slots import SlotRows


def read_together(rows: SlotRows, lanes: Sequence[Lane], pieces: Sequence[Sequence[int]]) -> list[Tensor]:
    """The next tokens of several rows; hidden states (T,D) of each.

    The rows stand anywhere, so what they remember is copied side by side for the pass, and what is new is put back. A
    shorter piece is filled up on the right; what fills it stands in a column behind all others, where nobody looks.
    """
    starts = [lane.length for lane in lanes]
    longest, have = max(map(len, pieces)), max(starts)
    aside = max(start + len(piece) for start, piece in zip(starts, pieces, strict=True))
    even = min(starts) == have and min(map(len, pieces)) == longest
    ids, places, at = ([[fill] * longest for _ in lanes] for fill in (0, 0, aside))
    for row, (start, piece) in enumerate(zip(starts, pieces, strict=True)):
        ids[row][: len(piece)] = piece
        places[row][: len(piece)] = at[row][: len(piece)] = range(start, start + len(piece))
    device, columns = rows.device, aside if even else aside + 1
    slots = torch.tensor([lane.slot for lane in lanes], device=device)  # (M,)
    put = slice(have, aside) if even else torch.tensor(at, device=device)  # (M,T)
    copies = [copied(layer, slots, have, columns, put) for layer in rows.layers]
    state = PlacedState(
        [LayerState(layer) for layer in copies], len(lanes), length=have if even else 0, gaps=not even,
        places=torch.tensor(places, device=device), columns=torch.arange(columns, device=device)[None],
    )  # fmt: skip
    hidden = hidden_states(rows.model, torch.tensor(ids, device=device), None, state)  # (M,T,D)
    which = torch.tensor([row for row, piece in enumerate(pieces) for _ in piece], device=device)  # (all tokens,)
    where = torch.tensor([one for row, piece in enumerate(pieces) for one in at[row][: len(piece)]], device=device)
    for layer, copy in zip(rows.layers, copies, strict=True):
        for buffer, new in zip(layer.buffers, copy.buffers, strict=True):
            buffer[slots[which], :, where] = new[which, :, where]
    return [found[: len(piece)] for found, piece in zip(hidden, pieces, strict=True)]


def copied(layer: Places, slots: Tensor, have: int, columns: int, at: Tensor | slice) -> Places:
    """The first columns of some rows side by side, with room for more: zeros, as what is hidden must be a number."""
    found = []
    for buffer in layer.buffers:
        fresh = buffer.new_zeros(len(slots), buffer.shape[1], columns, buffer.shape[3])
        if have:
            fresh[:, :, :have] = buffer[slots, :, :have]
        found.append(fresh)
    return Places(keys=found[0], values=found[1], at=at)

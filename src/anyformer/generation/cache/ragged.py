"""Texts of one model that grow and are taken back each at its own pace, as tokens that were only proposed ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from anyformer.core.history import Running
from anyformer.core.model import Seq2Seq
from anyformer.core.state import LayerState
from anyformer.core.static_cache import PlacedState
from anyformer.generation.cache.base import scores_of
from anyformer.generation.cache.slots import can_be_placed
from anyformer.generation.prompts import Asked
from anyformer.generation.runners.compiled import Compiled
from anyformer.generation.runners.compiled_texts import SheetTexts
from anyformer.generation.runners.eager import RunningModel, RunningPair, device_of, hidden_states

CHUNK = 512  # tokens of prompts read at once unless told otherwise: texts of different length are filled up


class Texts(Protocol):
    """A few texts, numbered from 0."""

    lengths: list[int]  # tokens read of each

    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        """The next tokens of some texts; hidden states (T,D) of each."""

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores (N,V) of the tokens that follow, from hidden states (N,D)."""

    def keep(self, text: int, length: int) -> None:
        """Take back all but the first tokens of a text, and never less than these later."""


def texts_of(model: Any, count: int, limit: int, memory: Tensor | None, memory_mask: Tensor | None) -> Texts:
    """Room for texts of at most `limit` tokens; `memory` (B,S,D) is what an encoder made of their sources."""
    if isinstance(model, Compiled):
        return SheetTexts(model, count, limit)
    if count > 1 and not isinstance(model.spec, Seq2Seq) and can_be_placed(model):
        return PlacedTexts(model, count, limit)
    return LoneTexts(model, count, memory, memory_mask)


class LoneTexts:
    """Each text with a state of its own: for every part, and no slower than any other way where there is one text."""

    def __init__(self, model: Any, count: int, memory: Tensor | None, memory_mask: Tensor | None) -> None:
        self.model, self.device = model, device_of(model)
        self.lengths = [0] * count
        self.states = [model.state(1, rolling=False) for _ in range(count)]
        for text, state in enumerate(self.states):
            if memory is not None:
                state.memory = memory[text : text + 1]
                state.memory_mask = None if memory_mask is None else memory_mask[text : text + 1]

    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        kind = RunningPair if isinstance(self.model.spec, Seq2Seq) else RunningModel
        found = []
        for text, piece in pieces.items():
            ids = torch.tensor([list(piece)], device=self.device)
            found.append(kind(self.model, self.states[text]).read(ids, None)[0])
            self.lengths[text] += len(piece)
        return found

    def scores(self, hidden: Tensor) -> Tensor:
        return scores_of(self.model, hidden)

    def keep(self, text: int, length: int) -> None:
        state = self.states[text].keep(length)
        for layer in state.layers:
            if isinstance(layer.mixer, Running):
                layer.mixer.settle()  # or a recurrence would hold its state after every token of the text
        self.lengths[text] = length


class PlacedTexts:
    """All texts in one pass: attention in fixed places, where what is taken back is simply written over."""

    def __init__(self, model: Any, count: int, limit: int) -> None:
        self.model, self.device = model, device_of(model)
        dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
        blocks = [model.stack.blocks[which] for which in model.stack.order]
        self.layers = [block.mixer.places(count, limit + 1, self.device, dtype) for block in blocks]
        self.columns = torch.arange(limit + 1, device=self.device)[None]
        self.lengths = [0] * count

    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        rows = max(pieces) + 1
        longest = max(map(len, pieces.values()))
        # What fills a row up stands behind everything that is real, where no real token looks.
        aside = max(self.lengths[text] + len(piece) for text, piece in pieces.items())
        ids, places, at = ([[fill] * longest for _ in range(rows)] for fill in (0, 0, aside))
        for text, piece in pieces.items():
            start, stop = self.lengths[text], self.lengths[text] + len(piece)
            ids[text][: len(piece)] = piece
            places[text][: len(piece)] = at[text][: len(piece)] = range(start, stop)
            self.lengths[text] = stop
        columns = aside + 1
        put = torch.tensor(at, device=self.device)
        layers = [LayerState(layer.part(slice(0, rows), columns, put)) for layer in self.layers]
        state = PlacedState(
            layers, rows, places=torch.tensor(places, device=self.device), columns=self.columns[:, :columns]
        )
        hidden = hidden_states(self.model, torch.tensor(ids, device=self.device), None, state)  # (rows,T,D)
        return [hidden[text, : len(piece)] for text, piece in pieces.items()]

    def scores(self, hidden: Tensor) -> Tensor:
        return scores_of(self.model, hidden)

    def keep(self, text: int, length: int) -> None:
        self.lengths[text] = length


def opened(model: Any, asked: Asked, copies: int) -> Texts:
    """Room for the texts of a call; an encoder-decoder reads the sources here."""
    memory = mask = None
    if isinstance(model.spec, Seq2Seq):
        memory = model.encode(asked.source, asked.source_real).repeat_interleave(copies, 0)
        mask = None if asked.source_real is None else asked.source_real.repeat_interleave(copies, 0)
    return texts_of(model, len(asked.ids) * copies, asked.longest + asked.new, memory, mask)


def read_on(texts: Texts, pieces: Mapping[int, list[int]], chunk: int) -> dict[int, Tensor]:
    """Read pieces of any length a part at a time; hidden states of the last part of each, (T,D)."""
    last: dict[int, Tensor] = {}
    at = 0
    while part := {row: piece[at : at + chunk] for row, piece in pieces.items() if len(piece) > at}:
        last |= dict(zip(part, texts.read(part), strict=True))
        for row, piece in part.items():
            if at + len(piece) < len(pieces[row]):
                texts.keep(row, texts.lengths[row])  # what was read is final
        at += chunk
    return last

"""Rows that a compiled model writes: buffers of fixed places, and what decoding and speculation ask of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anyformer.core.state import LayerState
from anyformer.core.static_cache import PlacedState, Places, rounded
from anyformer.generation.runners.compiled import FEW, Compiled
from anyformer.generation.runners.eager import hidden_states

SIZES = (1, 2, 8, FEW)  # tokens of a row read at once: one, one behind a guess that held, a guess to be checked
BLOCK = 64  # columns of a pass are a multiple of this: few views, and at most 63 columns for nothing


class Sheet:
    """Room for `rows` texts of at most `limit` tokens, each token in the column of its position."""

    def __init__(self, model: Compiled, rows: int, limit: int) -> None:
        self.model, self.device, self.rows, self.limit = model, model.device, rows, limit
        self.ours = model.is_ours()  # then any shape is as good as another
        self.held = rows if self.ours else rounded(rows)
        # One column more than a pass ever takes part in: a view that is all of a buffer would be compiled apart.
        width = upward(limit + 1) + 1
        stack = model.model.stack
        dtype = next(p.dtype for p in model.model.parameters() if p.is_floating_point())
        blocks = [stack.blocks[which] for which in stack.order]
        layers = [block.mixer.places(self.held, width, self.device, dtype).buffers for block in blocks]
        self.keys, self.values = [keys for keys, _ in layers], [values for _, values in layers]
        for buffer in () if self.ours else (*self.keys, *self.values):
            any_size(buffer, 2)
        self.step = model.step(self.keys, self.values)
        self.columns = torch.arange(width, device=self.device)[None]
        self.reaches: dict[int, Tensor] = {}

    def shared_with(self, model: Compiled) -> Sheet:
        """The same rows for a model of the same shape: each reads what the other wrote, and writes over it."""
        twin = copy.copy(self)
        twin.model, twin.step = model, model.step(self.keys, self.values)
        return twin

    def prompt(self, tokens: Tensor, start: int, first: int = 0) -> Tensor:
        """Hidden states (B,T,D) of more tokens of B rows from the `first` on, all from the same column on."""
        rows, stop = slice(first, first + tokens.shape[0]), start + tokens.shape[1]
        layers = [
            LayerState(Places(keys=k[rows, :, :stop], values=v[rows, :, :stop], at=slice(start, stop)))
            for k, v in zip(self.keys, self.values, strict=True)
        ]
        state = PlacedState(layers, tokens.shape[0], length=start, gaps=False, places=self.columns[:, start:stop],
                            columns=self.columns[:, :stop])  # fmt: skip
        return hidden_states(self.model.model, tokens, None, state)

    def read(self, tokens: Tensor, places: Tensor, at: Tensor, reach: int) -> Tensor:
        """Hidden states (held,T,D) of a few tokens of every row, where no row is longer than `reach`."""
        reach = upward(reach)
        if reach not in self.reaches:
            self.reaches[reach] = self.columns[:, :reach]
            if not self.ours:
                any_size(self.reaches[reach], 1)
        return self.step(tokens, places, at, self.reaches[reach])

    def select(self, rows: Tensor) -> None:
        """These rows in this order are the first ones."""
        for buffer in (*self.keys, *self.values):
            buffer[: len(rows)] = buffer[rows]


def any_size(tensor: Tensor, axis: int) -> None:
    """Tell the compiler that this axis may have any size."""
    from torch._dynamo import mark_dynamic

    mark_dynamic(tensor, axis)


def upward(columns: int) -> int:
    return -(-columns // BLOCK) * BLOCK


class RunningSheet:
    """A compiled decoder in the act of writing: what `Decoding` and beam search ask of a model."""

    def __init__(self, model: Compiled, rows: int, limit: int, chunk: int | None = None) -> None:
        self.model, self.chunk, self.rows = model, chunk, 0
        self.sheet = Sheet(model, rows, limit)
        held, device = self.sheet.held, model.device
        self.tokens, self.places, self.more = (torch.zeros(held, 1, dtype=torch.long, device=device) for _ in range(3))
        self.at = self.places.clone()  # idle rows stay in their first column
        self.longest = 0

    def start(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """Read the prompts (B,T), padding on the left; scores of the next token, (B,V)."""
        self.rows, self.longest = tokens.shape
        lengths = torch.full((self.rows,), self.longest, device=self.model.device) if real is None else real.sum(1)
        if real is not None:  # to the left: what is then behind a row is hidden until it is written over
            shift = torch.arange(self.longest, device=self.model.device) + (self.longest - lengths)[:, None]
            tokens = tokens.gather(1, shift.clamp(max=self.longest - 1))
        last, size = None, self.chunk or self.longest
        for start in range(0, self.longest, size):
            hidden = self.sheet.prompt(tokens[:, start : start + size], start)
            at = (lengths - 1 - start).clamp(0, hidden.shape[1] - 1)
            newest = hidden[torch.arange(self.rows, device=hidden.device), at]
            last = newest if last is None else newest.where((lengths > start)[:, None], last)
        assert last is not None
        for known in (self.places, self.at):
            known[: self.rows, 0] = lengths
        self.more[: self.rows] = 1
        return self.model.scores(last)

    def step(self, tokens: Tensor) -> Tensor:
        """One more token a row, (B,); scores of the next, (B,V)."""
        self.tokens[: self.rows, 0] = tokens
        self.longest += 1
        hidden = self.sheet.read(self.tokens, self.places, self.at, self.longest)
        self.places += self.more
        self.at += self.more
        return self.model.scores(hidden[:, 0])[: self.rows]

    def repeat(self, copies: int) -> None:
        """Each row that many times, next to each other."""
        if copies == 1:
            return
        rows = torch.arange(self.rows, device=self.model.device).repeat_interleave(copies)
        self.sheet.select(rows)
        self.rows = len(rows)
        for known in (self.places, self.at, self.more):
            known[: self.rows] = known[rows]

    def reorder(self, rows: Tensor) -> None:
        """Rows change places with rows of the same prompt, which are as long."""
        self.sheet.select(rows)


class SheetTexts:
    """Texts of a compiled decoder that grow and are taken back: what is taken back is simply written over."""

    def __init__(self, model: Compiled, count: int, limit: int) -> None:
        self.model, self.sheet = model, Sheet(model, count, limit + FEW)
        self.lengths = [0] * count

    def read(self, pieces: Mapping[int, Sequence[int]]) -> list[Tensor]:
        """The next tokens of some texts; hidden states (T,D) of each."""
        longest = max(map(len, pieces.values()))
        if longest > FEW:
            return [self.prompt(text, piece) for text, piece in pieces.items()]
        held, width = self.sheet.held, longest
        if not self.sheet.ours:
            width = next(size for size in SIZES if size >= longest)
        # What fills a row up stands behind everything that is real, where no real token looks.
        aside = max(*self.lengths, *(self.lengths[text] + len(piece) for text, piece in pieces.items()))
        ids, places, at = ([[fill] * width for _ in range(held)] for fill in (0, 0, aside))
        for text, piece in pieces.items():
            start, stop = self.lengths[text], self.lengths[text] + len(piece)
            ids[text][: len(piece)] = piece
            places[text][: len(piece)] = at[text][: len(piece)] = range(start, stop)
            self.lengths[text] = stop
        given = [torch.tensor(one, device=self.model.device) for one in (ids, places, at)]
        hidden = self.sheet.read(given[0], given[1], given[2], aside + 1)
        return [hidden[text, : len(piece)] for text, piece in pieces.items()]

    def shared_with(self, model: Compiled) -> SheetTexts:
        """The same texts for a draft of the same shape, which goes on from what the model has read."""
        twin = copy.copy(self)
        twin.model, twin.sheet, twin.lengths = model, self.sheet.shared_with(model), list(self.lengths)
        return twin

    def prompt(self, text: int, piece: Sequence[int]) -> Tensor:
        """A long piece of one text, by itself."""
        start = self.lengths[text]
        self.lengths[text] = start + len(piece)
        return self.sheet.prompt(torch.tensor([list(piece)], device=self.model.device), start, text)[0]

    def scores(self, hidden: Tensor) -> Tensor:
        """Scores (N,V) of the tokens that follow, from hidden states (N,D)."""
        return self.model.scores(hidden)

    def keep(self, text: int, length: int) -> None:
        """Take back all but the first tokens of a text."""
        self.lengths[text] = length

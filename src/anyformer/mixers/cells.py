"""Recurrent cells: torch's own RNN, GRU and LSTM, along a line of tokens or one token at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyformer.core.context import Context
from anyformer.core.own_init import Start, Starting, uniform

Kind = Literal["rnn", "gru", "lstm"]
Held = tuple[Tensor, ...]  # what a cell remembers: (h,), or (h, c) of an LSTM; each (B,hidden)
GATES: dict[Kind, int] = {"rnn": 1, "gru": 3, "lstm": 4}
ALONG: dict[Kind, Any] = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}
HALF = (torch.bfloat16, torch.float16)


class Cell(Starting):
    """One layer in one direction; its parameters have the names, shapes and starts of `nn.GRU` and its like.

    An LSTM's forget gate starts open (a bias of 1, Jozefowicz et al. 2015): else what happened t tokens ago has faded
    to 2^-t before anything is learned.
    """

    def __init__(self, kind: Kind, inputs: int, hidden: int) -> None:
        super().__init__()
        self.kind, self.hidden = kind, hidden
        rows = GATES[kind] * hidden
        self.weight_ih_l0 = nn.Parameter(torch.empty(rows, inputs))
        self.weight_hh_l0 = nn.Parameter(torch.empty(rows, hidden))
        self.bias_ih_l0 = nn.Parameter(torch.empty(rows))
        self.bias_hh_l0 = nn.Parameter(torch.empty(rows))
        drawn = uniform(-(hidden**-0.5), hidden**-0.5)
        self.starts = dict.fromkeys(("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), drawn)
        if kind == "lstm":
            self.starts["bias_ih_l0"] = partial(open_gate, drawn=drawn, hidden=hidden)

    @property
    def parts(self) -> int:
        """How many tensors it remembers."""
        return 2 if self.kind == "lstm" else 1

    def nothing(self, x: Tensor) -> Held:
        """What it remembers before the first token of each of B lines."""
        return (x.new_zeros(x.shape[0], self.hidden, dtype=computing(x)),) * self.parts

    def forward(self, x: Tensor, start: Held) -> tuple[Tensor, Held]:
        """(B,T,D) to (B,T,hidden), and what it remembers behind the last token."""
        with torch.autocast("cpu", enabled=False):
            kind, weights = computing(x), self.weights(x)
            before = tuple(part.to(kind)[None] for part in start)
            along = before if self.kind == "lstm" else before[0]
            graded = torch.is_grad_enabled()  # cuDNN keeps what a backward pass needs only "in training"
            y, *after = ALONG[self.kind](x.to(kind), along, weights, True, 1, 0.0, graded, False, True)
        return y.to(x.dtype), tuple(part[0] for part in after)

    def step(self, x: Tensor, held: Held) -> Held:
        """What it remembers after one more token (B,D); the first part of it is the answer."""
        with torch.autocast("cpu", enabled=False):
            kind, weights = computing(x), self.weights(x)
            x, held = x.to(kind), tuple(part.to(kind) for part in held)
            if self.kind == "lstm":
                return torch.lstm_cell(x, held, *weights)
            return ((torch.gru_cell if self.kind == "gru" else torch.rnn_tanh_cell)(x, held[0], *weights),)

    def weights(self, x: Tensor) -> tuple[Tensor, ...]:
        own = (self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0)
        if not x.is_cuda:
            return tuple(part.to(computing(x)) for part in own)
        # cuDNN wants them in one piece of memory; it would make one at every call itself, with a warning.
        whole = torch.cat([part.flatten() for part in own]).to(x.dtype)
        flat = whole.split([part.numel() for part in own])
        return tuple(piece.view(part.shape) for piece, part in zip(flat, own, strict=True))


class Uncompiled(nn.Module):
    """A mixer that goes from token to token in `mix`, and is left as it is where the rest of a model is compiled.

    The compiler would write every token of the text out in one graph, and another one for every length.
    """

    def forward(self, x: Tensor, context: Context, state: Any, tables: tuple[Tensor, ...]) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self.mix)(x, context, state)
        return self.mix(x, context, state)

    def mix(self, x: Tensor, context: Context, state: Any) -> Tensor:
        """(B,T,D) to (B,T,D)."""
        raise NotImplementedError


def computing(x: Tensor) -> torch.dtype:
    """The type a cell computes in: on a CPU never half precision, for which torch's LSTM can end the process."""
    return torch.float32 if x.device.type == "cpu" and x.dtype in HALF else x.dtype


def open_gate(p: Tensor, generator: torch.Generator | None, *, drawn: Start, hidden: int) -> None:
    """Fill the biases of an LSTM, rows input, forget, cell, output."""
    drawn(p, generator)
    p[hidden : 2 * hidden] += 1.0


def begins(context: Context) -> Tensor | None:
    """(B,T) True where a token is the first of its document; None where one text goes on."""
    now, known = context.documents, context.key_documents
    if now is None or known is None:
        return None
    length = now.shape[1]
    if known.shape[1] > length:
        return now != known[:, -length - 1 : -1]
    new = torch.ones_like(now, dtype=torch.bool)
    new[:, 1:] = now[:, 1:] != now[:, :-1]
    return new


class CarriedState:
    """Token by token through padding and documents: what a cell starts each token from, and what stays of it."""

    def __init__(self, context: Context, fresh: Held, held: Held) -> None:
        self.mask, self.new, self.fresh, self.held = context.mask, begins(context), fresh, held

    def before(self, t: int) -> Held:
        """What token t starts from: where its document begins there, from nothing."""
        if self.new is not None:
            self.held = chosen(self.new[:, t], self.fresh, self.held)
        return self.held

    def after(self, t: int, now: Held) -> Held:
        """What is remembered behind token t: padding changes nothing."""
        self.held = now if self.mask is None else chosen(self.mask[:, t], now, self.held)
        return self.held


def chosen(which: Tensor, yes: Held, no: Held) -> Held:
    """Row by row (B,) from one or the other."""
    return tuple(a.where(which[:, None], b.to(a.dtype)) for a, b in zip(yes, no, strict=True))


def pieces(length: int, size: int | None) -> Iterator[slice]:
    """0 to `length` in pieces of `size`."""
    size = length if size is None else size
    return (slice(at, min(at + size, length)) for at in range(0, length, size))

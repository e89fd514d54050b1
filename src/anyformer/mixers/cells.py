"""Recurrent cells: torch's own RNN, GRU and LSTM, over a sequence or one token at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anyformer.core.context import Context
from anyformer.core.own_init import Start, Starting, uniform

Kind = Literal["rnn", "gru", "lstm"]
Held = tuple[Tensor, ...]  # a cell's state: (h,), or (h, c) of an LSTM; each (B,hidden)
GATES: dict[Kind, int] = {"rnn": 1, "gru": 3, "lstm": 4}
ALONG: dict[Kind, Any] = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}
HALF = (torch.bfloat16, torch.float16)


class Cell(Starting):
    """One layer in one direction; its parameters have the names, shapes and initialisation of `nn.GRU` and its like.

    An LSTM's forget gate starts open (a bias of 1, Jozefowicz et al. 2015): otherwise information from t tokens ago
    decays as 2^-t before anything is learned.
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
        """Number of state tensors."""
        return 2 if self.kind == "lstm" else 1

    def nothing(self, x: Tensor) -> Held:
        """The initial state for B lines."""
        return (x.new_zeros(x.shape[0], self.hidden, dtype=computing(x)),) * self.parts

    def forward(self, x: Tensor, start: Held) -> tuple[Tensor, Held]:
        """(B,T,D) to (B,T,hidden), and the final state."""
        with torch.autocast("cpu", enabled=False):
            kind, weights = computing(x), self.weights(x)
            before = tuple(part.to(kind)[None] for part in start)
            along = before if self.kind == "lstm" else before[0]
            graded = torch.is_grad_enabled()  # cuDNN only saves what backward needs if train=True
            y, *after = ALONG[self.kind](x.to(kind), along, weights, True, 1, 0.0, graded, False, True)
        return y.to(x.dtype), tuple(part[0] for part in after)

    def step(self, x: Tensor, held: Held) -> Held:
        """The state after one more token (B,D); its first part is the output."""
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
        # cuDNN needs contiguous weights; otherwise it copies them at every call, with a warning.
        whole = torch.cat([part.flatten() for part in own]).to(x.dtype)
        flat = whole.split([part.numel() for part in own])
        return tuple(piece.view(part.shape) for piece, part in zip(flat, own, strict=True))


class Uncompiled(nn.Module):
    """A mixer with a loop over tokens in `mix`, which stays eager when the rest of a model is compiled.

    The compiler would unroll the loop over all tokens, with a new graph for every length.
    """

    def forward(self, x: Tensor, context: Context, state: Any, tables: tuple[Tensor, ...]) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self.mix)(x, context, state)
        return self.mix(x, context, state)

    def mix(self, x: Tensor, context: Context, state: Any) -> Tensor:
        """(B,T,D) to (B,T,D)."""
        raise NotImplementedError


def computing(x: Tensor) -> torch.dtype:
    """The dtype a cell computes in: on a CPU never half precision, in which torch's LSTM can crash."""
    return torch.float32 if x.device.type == "cpu" and x.dtype in HALF else x.dtype


def open_gate(p: Tensor, generator: torch.Generator | None, *, drawn: Start, hidden: int) -> None:
    """Initialise the biases of an LSTM, rows input, forget, cell, output, with an open forget gate."""
    drawn(p, generator)
    p[hidden : 2 * hidden] += 1.0


def begins(context: Context) -> Tensor | None:
    """(B,T) True for the first token of each document; None without documents."""
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
    """Carries a cell's state over tokens, reset at documents and held over padding."""

    def __init__(self, context: Context, fresh: Held, held: Held) -> None:
        self.mask, self.new, self.fresh, self.held = context.mask, begins(context), fresh, held

    def before(self, t: int) -> Held:
        """The state before token t: the initial state if a document begins there."""
        if self.new is not None:
            self.held = chosen(self.new[:, t], self.fresh, self.held)
        return self.held

    def after(self, t: int, now: Held) -> Held:
        """The state after token t: unchanged by padding."""
        self.held = now if self.mask is None else chosen(self.mask[:, t], now, self.held)
        return self.held


def chosen(which: Tensor, yes: Held, no: Held) -> Held:
    """Select states row by row (B,)."""
    return tuple(a.where(which[:, None], b.to(a.dtype)) for a, b in zip(yes, no, strict=True))


def pieces(length: int, size: int | None) -> Iterator[slice]:
    """Slices of 0 to `length` of `size` each."""
    size = length if size is None else size
    return (slice(at, min(at + size, length)) for at in range(0, length, size))

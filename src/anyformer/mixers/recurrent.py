"""Recurrent mixers: RNN, GRU and LSTM, uni- or bidirectional."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.document_rows import DocumentLines
from anyformer.core.history import RecurrentState
from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError, check_at_least
from anyformer.mixers.cells import CarriedState, Cell, Held, Kind, Uncompiled, pieces
from anyformer.slots import Mixer, Relative
from anyformer.spec import field


class Recurrent(Mixer):
    """h_t = cell(h_{t-1}, x_t) with torch's RNN (tanh), GRU or LSTM of `hidden` units, by default the width.

    `directions` follows the stack: one if it is causal, else two, whose outputs are concatenated; 1 is forward only.
    The
    output is projected if its width differs from the stack's. `truncate` is truncated backpropagation through time in
    training, every that many tokens; outputs are unaffected.
    """

    cell: Kind = field(default="lstm", kw_only=False)  # Recurrent("gru")
    """Kind of recurrent cell."""
    hidden: int | None = None
    """Units of the state; the width if not given."""
    directions: Literal[1, 2] | None = None
    """1 is forward only; by default one in a causal stack, else two."""
    truncate: int | None = None
    """Tokens after which the gradient is truncated in training; never if not given."""

    compiles: ClassVar[bool] = False
    about: ClassVar[About | None] = About(
        "h_t = f(U h_{t-1} + W x_t), f = tanh; GRU and LSTM add gates",
        "Elman 1990; GRU 1406.1078; LSTM Hochreiter & Schmidhuber 1997",
        "T D^2, T steps one after the other",
    )

    def check(self) -> None:
        for name in ("hidden", "truncate"):
            value = getattr(self, name)
            check_at_least("Recurrent", name, value, 1, fix="use 1 or more, or leave it out")

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        if causal and self.directions == 2:
            raise UserError("two directions read the future, a causal stack may not", where="Recurrent.directions",
                            fix="use directions=1 or leave it out, or Stack(causal=False)")  # fmt: skip
        return RecurrentModule(self, width, self.directions or (1 if causal else 2))


class RecurrentModule(Uncompiled):
    def __init__(self, spec: Recurrent, width: int, directions: int) -> None:
        super().__init__()
        hidden = width if spec.hidden is None else spec.hidden
        self.spec = spec
        self.forth = Cell(spec.cell, width, hidden)
        self.back = Cell(spec.cell, width, hidden) if directions == 2 else None
        self.out = None if directions * hidden == width else LinearLayer(directions * hidden, width)

    def mix(self, x: Tensor, context: Context, state: RecurrentState | None) -> Tensor:
        lines = DocumentLines.of(context)
        if state is None:
            y = self.read(x, None) if lines is None else lines.together(self.read(lines.apart(x), lines.lengths))
        elif lines is None and context.rolling:
            y, end = self.forth(x, state.now if state.length else self.forth.nothing(x))
            state.update(end, x.shape[1])
        else:
            y = self.step_by_step(x, context, state)
        return y if self.out is None else self.out(y)

    def read(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Run whole lines (N,T,D), in one or both directions, to (N,T,directions x hidden)."""
        y = self.along(self.forth, x)
        if self.back is None:
            return y
        return torch.cat([y, turned(self.along(self.back, turned(x, lengths)), lengths)], -1)

    def along(self, cell: Cell, x: Tensor) -> Tensor:
        """Run one direction; in training the gradient goes back at most `truncate` tokens."""
        held, parts = cell.nothing(x), []
        for piece in pieces(x.shape[1], self.spec.truncate if self.training else None):
            y, held = cell(x[:, piece], tuple(part.detach() for part in held))
            parts.append(y)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def step_by_step(self, x: Tensor, context: Context, state: RecurrentState) -> Tensor:
        """Decoding if rows differ in padding or documents, or if every token's state must be kept."""
        fresh = self.forth.nothing(x)
        walk, steps = CarriedState(context, fresh, state.now if state.length else fresh), list[Held]()
        answers = []
        for t in range(x.shape[1]):
            now = self.forth.step(x[:, t], walk.before(t))
            answers.append(now[0])
            steps.append(walk.after(t, now))
        state.update(walk.held, x.shape[1], None if context.rolling else steps)
        return torch.stack(answers, 1).to(x.dtype)

    def state(self, batch: int, limit: int | None) -> RecurrentState:
        """An empty recurrent state, whose size does not depend on the text's length."""
        return RecurrentState()


def turned(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse each line (N,T,D) within its length; padding stays in place."""
    if lengths is None:
        return x.flip(1)
    t = torch.arange(x.shape[1], device=x.device)
    at = (lengths[:, None] - 1 - t).where(t < lengths[:, None], t)  # (N,T)
    return x.gather(1, at[..., None].expand_as(x))

"""The decoder of recurrent encoder-decoders: a recurrent cell with attention to the encoder's output.

Bahdanau, Cho and Bengio (1409.0473): before each step the decoder's state attends to the source tokens, and the
weighted mean of those enters the cell together with the input token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attention_weights import Weighing
from anyformer.core.context import Context
from anyformer.core.history import RecurrentState
from anyformer.core.join_states import pad_right
from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError, check_at_least
from anyformer.mixers.alignment import Alignment, Score, check_product
from anyformer.mixers.cells import CarriedState, Cell, Held, Kind, Uncompiled
from anyformer.slots import Mixer, Relative
from anyformer.spec import field


class AttendingRecurrent(Mixer):
    """s_i = cell(s_{i-1}, [x_i; c_i]) where c_i is the context from the memory; the output is out([s_i; c_i]).

    `context` selects c_i. "attention": sum_j a_ij h_j with a_ij = softmax_j e_ij, where `score` makes e_ij =
    v.tanh(W s_{i-1} + U h_j) ("additive", Bahdanau), s_{i-1}.h_j ("dot") or s_{i-1}.(W h_j) ("general", Luong
    1508.04025). "every": the same [h_1; h_S] at every step (Cho et al. 1406.1078). "first": none, so that the memory
    only enters s_0 (Sutskever et al. 1409.3215). Always s_0 = tanh(W_s [h_1; h_S]), the first and last source state:
    there each direction of an encoder has read the whole source.
    """

    cell: Kind = field(default="gru", kw_only=False)  # AttendingRecurrent("gru")
    """Kind of recurrent cell."""
    hidden: int | None = None
    """Units of the state; the width if not given."""
    context: Literal["attention", "every", "first"] = "attention"
    """How a step sees the source: attention, its first and last state, or only through the initial state."""
    score: Score = "additive"
    """How a state and a source token are scored."""

    looks_at_memory: ClassVar[bool] = True
    compiles: ClassVar[bool] = False
    about: ClassVar[About | None] = About(
        "e_ij = v.tanh(W s_{i-1} + U h_j), a_ij = softmax_j e_ij, s_i = cell(s_{i-1}, [x_i; sum_j a_ij h_j])",
        "1409.0473; dot and general 1508.04025",
        "T D^2 + T S D, T steps one after the other",
    )

    def check(self) -> None:
        check_at_least("AttendingRecurrent", "hidden", self.hidden, 1, fix="use 1 or more")
        if self.context != "attention" and self.score != "additive":
            raise UserError(f'context "{self.context}" compares nothing: there is no score to choose',
                            where="AttendingRecurrent.score", fix='use context="attention"')  # fmt: skip

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        if self.score == "dot" and memory_width is not None:  # a stack by itself does not know its encoder yet
            check_product(width if self.hidden is None else self.hidden, memory_width)
        kind = {"attention": Attending, "every": FixedContextRecurrent, "first": AttendingRecurrentModule}[self.context]
        return kind(self, width, width if memory_width is None else memory_width)


class AttendingState(RecurrentState):
    """The cell's state, and what is precomputed from the source (B,S,A)."""

    def __init__(self) -> None:
        super().__init__()
        self.source: Tensor | None = None

    def select(self, rows: Tensor) -> None:
        super().select(rows)
        self.source = None if self.source is None else self.source[rows]

    def join(self, others: Sequence[Self]) -> None:
        super().join(others)
        sources = [part.source for part in (self, *others) if part.source is not None]
        if sources:
            self.source = pad_right(sources, 1)

    @property
    def bytes(self) -> int:
        held = 0 if self.source is None else self.source.numel() * self.source.element_size()
        return super().bytes + held


class AttendingRecurrentModule(Uncompiled):
    """A cell whose initial state comes from the ends of the memory, which it does not see otherwise."""

    def __init__(self, spec: AttendingRecurrent, width: int, memory_width: int, reads: int = 0) -> None:
        super().__init__()
        self.spec = spec
        hidden = width if spec.hidden is None else spec.hidden
        self.cell = Cell(spec.cell, width + reads, hidden)
        self.begin = LinearLayer(2 * memory_width, self.cell.parts * hidden)
        self.out = None if hidden == width and not reads else LinearLayer(hidden + reads, width)

    def mix(self, x: Tensor, context: Context, state: AttendingState | None) -> Tensor:
        y = self.decode(x, context, state)[0]
        return y if self.out is None else self.out(y)

    def decode(self, x: Tensor, context: Context, state: AttendingState | None) -> tuple[Tensor, list[Tensor]]:
        """Step by step: (B,T,hidden + context channels), and the attention weights of each step, if any."""
        memory = source_of(context)
        ends = self.ends(memory, context.memory_mask)  # (B,2D')
        source = self.prepare(memory, ends) if state is None or state.source is None else state.source
        fresh: Held = self.begin(ends).tanh().chunk(self.cell.parts, -1)
        walk = CarriedState(context, fresh, state.now if state is not None and state.length else fresh)
        answers, weights, steps = [], [], []
        for t in range(x.shape[1]):
            before = walk.before(t)
            read, weight = self.look(before[0].to(x.dtype), source, context)
            now = self.cell.step(torch.cat([x[:, t], *read], -1), before)
            answers.append(torch.cat([now[0].to(x.dtype), *read], -1))
            weights += weight
            steps.append(walk.after(t, now))
        if state is not None:
            state.source = source
            state.update(walk.held, x.shape[1], None if context.rolling else steps)
        return torch.stack(answers, 1), weights

    @staticmethod
    def ends(memory: Tensor, mask: Tensor | None) -> Tensor:
        """The first and the last real token of the memory, concatenated."""
        if mask is None:
            return torch.cat([memory[:, 0], memory[:, -1]], -1)
        rows, last = torch.arange(memory.shape[0], device=memory.device), memory.shape[1] - 1
        found = mask.int().argmax(1), last - mask.flip(1).int().argmax(1)
        return torch.cat([memory[rows, at] for at in found], -1)

    def prepare(self, memory: Tensor, ends: Tensor) -> Tensor | None:
        """Precompute from the source, once per text."""
        return None

    def look(self, hidden: Tensor, source: Tensor | None, context: Context) -> tuple[list[Tensor], list[Tensor]]:
        """The context vector for a step and its attention weights; empty lists if there is none."""
        return [], []

    def state(self, batch: int, limit: int | None) -> AttendingState:
        """An empty decoding state, whose size does not depend on the text's length."""
        return AttendingState()


class FixedContextRecurrent(AttendingRecurrentModule):
    """The ends of the memory enter at every step."""

    def __init__(self, spec: AttendingRecurrent, width: int, memory_width: int) -> None:
        super().__init__(spec, width, memory_width, reads=2 * memory_width)

    def prepare(self, memory: Tensor, ends: Tensor) -> Tensor | None:
        return ends

    def look(self, hidden: Tensor, source: Tensor | None, context: Context) -> tuple[list[Tensor], list[Tensor]]:
        assert source is not None
        return [source], []


class Attending(AttendingRecurrentModule, Weighing):
    """Attention to the memory at every step, by the previous state."""

    def __init__(self, spec: AttendingRecurrent, width: int, memory_width: int) -> None:
        super().__init__(spec, width, memory_width, reads=memory_width)
        self.align = Alignment(spec.score, self.cell.hidden, memory_width)

    def prepare(self, memory: Tensor, ends: Tensor) -> Tensor | None:
        return self.align.keys(memory)

    def look(self, hidden: Tensor, source: Tensor | None, context: Context) -> tuple[list[Tensor], list[Tensor]]:
        assert source is not None
        weights = self.align(hidden, source, context.memory_mask)  # (B,S)
        return [(weights[:, None] @ source_of(context))[:, 0]], [weights]

    def weights(
        self, x: Tensor, context: Context, state: AttendingState | None, tables: tuple[Tensor, ...], rows: slice
    ) -> Tensor:
        """The attention weights: one head, (B,1,t,S)."""
        return torch.stack(self.decode(x, context, state)[1], 1)[:, None, rows]


def source_of(context: Context) -> Tensor:
    """The encoder's output; required."""
    if context.memory is None:
        raise UserError("the decoder has nothing to look at", fix="pass memory=, the encoder's output")
    return context.memory

"""A model in the act of writing: it holds the decoding state and gives the scores of the next token."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from anyformer.core.state import State


class Running(Protocol):
    """What choosing tokens needs from a model."""

    def start(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """Read the prompts (B,T), padding on the left; scores of the next token, (B,V)."""

    def step(self, tokens: Tensor) -> Tensor:
        """One more token a row, (B,); scores of the next, (B,V)."""

    def repeat(self, copies: int) -> None:
        """Each row that many times, next to each other."""

    def reorder(self, rows: Tensor) -> None:
        """Rows change places with rows of the same prompt."""


class RunningModel:
    """A decoder; with the encoder's output, the decoder of an encoder-decoder."""

    def __init__(self, model: Any, state: State, chunk: int | None = None) -> None:
        self.model, self.state, self.chunk = model, state, chunk

    def start(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        size = self.chunk or tokens.shape[1]
        for at in range(0, tokens.shape[1], size):
            piece = slice(at, at + size)
            hidden = self.read(tokens[:, piece], None if real is None else real[:, piece])
        return self.scores(hidden)

    def step(self, tokens: Tensor) -> Tensor:
        return self.scores(self.read(tokens[:, None], None))

    def read(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        """Hidden states (B,T,D) of the next tokens; scores are made of the last one only, a prompt's would be large."""
        return hidden_states(self.model, tokens, real, self.state)

    def scores(self, hidden: Tensor) -> Tensor:
        return logits_of(self.model, hidden[:, -1:])[:, 0]

    def repeat(self, copies: int) -> None:
        if copies > 1:
            self.state.select(torch.arange(self.state.batch, device=device_of(self.model)).repeat_interleave(copies))

    def reorder(self, rows: Tensor) -> None:
        self.state.reorder(rows)


class RunningPair(RunningModel):
    """An encoder-decoder: the state holds the encoder's output, and the decoder's embedding may borrow its table."""

    def read(self, tokens: Tensor, real: Tensor | None) -> Tensor:
        return pair_hidden_states(self.model, tokens, real, self.state.memory, self.state.memory_mask, self.state)

    def scores(self, hidden: Tensor) -> Tensor:
        return pair_logits_of(self.model, hidden[:, -1:])[:, 0]


def hidden_states(model: Any, tokens: Tensor, real: Tensor | None, state: State | None = None) -> Tensor:
    """A decoder's output before its head, (B,T,D)."""
    context = model.embed.layout(tokens, mask=real, state=state)
    x = model.embed(tokens, context=context)
    hidden, _ = model.stack(x, context, None if state is None else state.layers)
    return hidden


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """Scores of words from hidden states."""
    return model.head(hidden, None, model.table()).logits


def pair_hidden_states(
    model: Any,
    tokens: Tensor,
    real: Tensor | None,
    memory: Tensor | None,
    memory_mask: Tensor | None,
    state: State | None = None,
) -> Tensor:
    """An encoder-decoder's output before its head, (B,T,D)."""
    out = model.decoder(
        tokens, mask=real, memory=memory, memory_mask=memory_mask, state=state, table=model.shared_table()
    )
    return out.hidden


def pair_logits_of(model: Any, hidden: Tensor) -> Tensor:
    shared = model.shared_table()
    return model.head(hidden, None, model.decoder.table() if shared is None else shared).logits


def device_of(model: nn.Module) -> torch.device:
    """Where its weights are; a model without any computes on the CPU."""
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


@contextlib.contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """Without dropout and without autocast while it lasts: text is decoded in the precision of the weights.

    Buffers for keys are made once, in that precision, and a recorded step would keep the weights as autocast had cast
    them when it was recorded. For decoding in half precision, cast the model: `model.to(torch.bfloat16)`.
    """
    was_training = model.training
    if was_training:
        model.eval()
    try:
        with torch.autocast(device_of(model).type, enabled=False):
            yield
    finally:
        if was_training:
            model.train()

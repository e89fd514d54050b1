"""Alignment: attention weights of a decoder state over the source tokens."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from anyformer.core.linear import LinearLayer
from anyformer.errors import UserError

Score = Literal["additive", "dot", "general"]


class Alignment(nn.Module):
    """e_j = v.tanh(W s + U h_j), s.h_j or s.(U h_j); `keys` computes the part that is the same at every step."""

    def __init__(self, score: Score, hidden: int, memory_width: int) -> None:
        super().__init__()
        self.hidden = hidden
        additive = score == "additive"
        self.memory = None if score == "dot" else LinearLayer(memory_width, hidden, bias=False)  # U
        self.state = LinearLayer(hidden, hidden, bias=False) if additive else None  # W
        self.score = LinearLayer(hidden, 1, bias=False) if additive else None  # v

    def keys(self, memory: Tensor) -> Tensor:
        """(B,S,D') to (B,S,hidden), once per source."""
        if self.memory is not None:
            return self.memory(memory)
        check_product(self.hidden, memory.shape[-1])
        return memory

    def forward(self, state: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
        """Weights (B,S) over source tokens for states (B,hidden); all 0 for a row without tokens."""
        if self.state is not None and self.score is not None:
            fit = self.score(torch.tanh(self.state(state)[:, None] + keys))[..., 0]  # (B,S)
        else:
            fit = (keys @ state[..., None])[..., 0]
        if mask is None:
            return fit.softmax(-1)
        hidden = ~mask
        fit = fit.masked_fill(hidden, torch.finfo(fit.dtype).min)  # finite, so that a row without tokens has no nan
        return fit.softmax(-1).masked_fill(hidden, 0.0)


def check_product(hidden: int, memory_width: int) -> None:
    """A dot product needs equal sizes."""
    if hidden != memory_width:
        raise UserError(f"a state of {hidden} and a memory of {memory_width} channels have no product",
                        where="AttendingRecurrent.score", fix='use "general", or equal sizes')  # fmt: skip

"""Attention to a window, computed in chunks: cost and memory grow with T x window instead of T x T."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import Scores, attend
from anyformer.core.context import Context
from anyformer.core.state import KVCache
from anyformer.errors import UserError
from anyformer.mixers.attention import Attention, AttentionModule
from anyformer.mixers.heads import check_heads
from anyformer.mixers.pieces import attend_in_pieces
from anyformer.slots import HeadSizes, Mixer, Relative


class Local(Mixer):
    """`Attention(window=...)` at a cost linear in the length: the same weights, the same answers, another computation.

    A token sees the `window` newest tokens, itself included (that many to either side without causal order).
    `Attention(window=...)` compares all pairs and hides most of them; here the text is cut into chunks as long as the
    window, and a chunk is compared with itself and its neighbours only.
    """

    heads: int
    """Attention heads."""
    window: int
    """Newest tokens that a token sees, itself included."""
    kv_heads: int | None = None
    """Heads of keys and values, fewer than `heads` for GQA, 1 for MQA; as many as `heads` if not given."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""

    takes_added: ClassVar[bool] = True
    takes_relative: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True
    about: ClassVar[About | None] = About(
        "y_i = sum_j softmax_j(q_i.k_j / sqrt(C)) v_j over 0 <= i - j < w (|i - j| < w without causal order)",
        "2004.05150 (sliding window)",
        "4 T D^2 + 4 T w D (6 T w D both ways)",
    )

    def check(self) -> None:
        check_heads("Local", self.heads, self.kv_heads, self.dropout, "sqrt")
        if self.window < 1:
            raise UserError(f"window {self.window} is below 1", where="Local", fix="use 128")

    @property
    def whole(self) -> Attention:
        """The attention that gives the same answers by comparing all pairs."""
        return Attention(
            heads=self.heads, kv_heads=self.kv_heads, window=self.window, bias=self.bias, dropout=self.dropout
        )

    def sizes(self, width: int) -> HeadSizes:
        return self.whole.sizes(width)

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return LocalModule(self.whole, width, causal, relative)


class LocalModule(AttentionModule):
    def forward(self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...]) -> Tensor:
        q, k, v, scores = self.prepare(x, context, state, tables)
        dropout = self.spec.dropout if self.training else 0.0
        assert self.spec.window is not None
        # A caller's own rule is T x S already; a step of decoding is short, and meets no more keys than the window has.
        ruled = scores.allowed is not None or scores.added is not None
        if ruled or context.past or x.shape[1] <= self.spec.window:
            y = attend(q, k, v, scores, dropout=dropout)  # (B,H,T,C')
        else:
            y = banded(q, k, v, scores, self.spec.window, dropout)
        return self.out(y.transpose(1, 2).flatten(2))  # (B,T,D)


def banded(q: Tensor, k: Tensor, v: Tensor, scores: Scores, window: int, dropout: float) -> Tensor:
    """Attention (B,H,T,C') of T tokens to each other in chunks of `window`; a chunk's rows are a batch of their own."""
    order = None
    if scores.key_mask is not None:  # real tokens first: then no padding stands between tokens of one window
        order = (~scores.key_mask).to(torch.uint8).argsort(dim=1, stable=True)  # (B,T)
        q, k, v = (along(x, order) for x in (q, k, v))
    batch, length = q.shape[0], q.shape[2]
    chunks = (length + window - 1) // window
    behind = chunks * window - length  # what fills the last chunk up
    after = 0 if scores.causal else window
    span = window * (2 if scores.causal else 3)

    def cut(x: Tensor) -> Tensor:
        """Queries (B,H,T,C) in chunks (B*chunks,H,window,C)."""
        return F.pad(x, (0, 0, 0, behind)).unflatten(2, (chunks, window)).transpose(1, 2).flatten(0, 1)

    def around(x: Tensor) -> Tensor:
        """Keys (B,G,T,C) beside every chunk (B*chunks,G,span,C): the chunk and its neighbours."""
        strips = F.pad(x, (0, 0, window, behind + after)).unfold(2, span, window)  # (B,G,chunks,C,span)
        return strips.permute(0, 2, 1, 4, 3).flatten(0, 1)

    def of_queries(x: Tensor | None) -> Tensor | None:
        """(B or 1, T) of each token in chunks (B*chunks, window)."""
        x = None if x is None else sorted_rows(x, order).expand(batch, -1)
        return None if x is None else F.pad(x, (0, behind)).unflatten(1, (chunks, window)).flatten(0, 1)

    def of_keys(x: Tensor | None) -> Tensor | None:
        x = None if x is None else sorted_rows(x, order).expand(batch, -1)
        return None if x is None else F.pad(x, (window, behind + after)).unfold(1, span, window).flatten(0, 1)

    real = scores.key_mask
    if real is None:
        real = torch.ones(1, length, dtype=torch.bool, device=q.device)
    apart = replace(
        scores,
        query_positions=of_queries(scores.query_positions), key_positions=of_keys(scores.key_positions),
        query_index=of_queries(scores.query_index), key_index=of_keys(scores.key_index),
        key_mask=of_keys(real), query_documents=of_queries(scores.query_documents),
        key_documents=of_keys(scores.key_documents), ordered=False,
    )  # fmt: skip
    y = attend_in_pieces(cut(q), around(k), around(v), apart, dropout)  # (B*chunks,H,window,C')
    y = y.unflatten(0, (batch, chunks)).transpose(1, 2).flatten(2, 3)[:, :, :length]  # (B,H,T,C')
    return y if order is None else along(y, order.argsort(dim=1))


def along(x: Tensor, order: Tensor) -> Tensor:
    """(B,H,T,C) with its tokens in another order (B,T)."""
    return x.gather(2, order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def sorted_rows(x: Tensor, order: Tensor | None) -> Tensor:
    """(B or 1, T) with its tokens in another order."""
    return x if order is None else x.expand(order.shape[0], -1).gather(1, order)

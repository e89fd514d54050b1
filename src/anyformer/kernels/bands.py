"""Sliding-window attention in chunks: cost and memory grow with T x window, for any bias, dropout and device."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.attend import Scores
from anyformer.kernels.pieces import attend_in_pieces


def attend_in_bands(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """Self-attention (B,H,T,C') of T tokens, cut into chunks of the window size that become the batch dimension."""
    window = scores.window
    assert window is not None
    order = None
    if scores.key_mask is not None:  # real tokens first, so that no padding lies between tokens of one window
        order = (~scores.key_mask).to(torch.uint8).argsort(dim=1, stable=True)  # (B,T)
        q, k, v = (along(x, order) for x in (q, k, v))
    batch, length = q.shape[0], q.shape[2]
    chunks = (length + window - 1) // window
    behind = chunks * window - length  # padding of the last chunk
    after = 0 if scores.causal else window
    span = window * (2 if scores.causal else 3)

    def cut(x: Tensor) -> Tensor:
        """Queries (B,H,T,C) as chunks (B*chunks,H,window,C)."""
        return F.pad(x, (0, 0, 0, behind)).unflatten(2, (chunks, window)).transpose(1, 2).flatten(0, 1)

    def around(x: Tensor) -> Tensor:
        """Keys (B,G,T,C) of every chunk and its neighbours (B*chunks,G,span,C)."""
        strips = F.pad(x, (0, 0, window, behind + after)).unfold(2, span, window)  # (B,G,chunks,C,span)
        return strips.permute(0, 2, 1, 4, 3).flatten(0, 1)

    def of_queries(x: Tensor | None) -> Tensor | None:
        """Per-token values (B or 1, T) as chunks (B*chunks, window)."""
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
    """Tokens of x (B,H,T,C) permuted by `order` (B,T)."""
    return x.gather(2, order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def sorted_rows(x: Tensor, order: Tensor | None) -> Tensor:
    """Tokens of x (B or 1, T) permuted by `order` (B,T), if given."""
    return x if order is None else x.expand(order.shape[0], -1).gather(1, order)

"""Attention over very many short rows, a piece of them at a time, for mixers that cut a text into chunks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyformer.core.attend import ROWS, Scores, attend


def attend_in_pieces(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """`attend` for rows that all have their own mask: so few at once that the masks of a piece are small.

    A mask is made for T x S pairs of every row. All at once they would be cut along the queries, which here are few.
    """
    rows, entries = q.shape[0], q.shape[2] * k.shape[2] * (q.shape[1] if scores.has_bias else 1)
    most = ROWS if q.is_cuda else ROWS // 4  # a processor is fastest while a piece fits its cache
    if rows * entries <= most:
        return attend(q, k, v, scores, dropout=dropout)
    size = max(1, most // entries)
    parts = []
    # Split, not sliced: the gradient of every slice would be as large as the whole, and the cost quadratic again.
    for i, some in enumerate(zip(q.split(size), k.split(size), v.split(size), strict=True)):
        given = *some, cut(scores, slice(i * size, (i + 1) * size))
        if scores.has_bias:  # as many biases as heads: made again in the backward pass, not kept
            parts.append(checkpoint(attend, *given, dropout=dropout, use_reentrant=False))
        else:
            parts.append(attend(*given, dropout=dropout))
    return torch.cat(parts)


def cut(scores: Scores, piece: slice) -> Scores:
    """The description of some rows only."""

    def some(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.shape[0] == 1 else x[piece]

    return replace(
        scores, query_positions=some(scores.query_positions), key_positions=some(scores.key_positions),
        query_index=some(scores.query_index), key_index=some(scores.key_index), key_mask=some(scores.key_mask),
        query_documents=some(scores.query_documents), key_documents=some(scores.key_documents),
    )  # fmt: skip

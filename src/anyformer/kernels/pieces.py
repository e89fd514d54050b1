"""Attention over very many short rows, some of them at a time, for mixers that chunk a sequence."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from anyformer.core.attend import ROWS, Scores, attend


def attend_in_pieces(q: Tensor, k: Tensor, v: Tensor, scores: Scores, dropout: float = 0.0) -> Tensor:
    """`attend` for rows that each have their own mask, few rows at a time so that their masks are small.

    A mask takes T x S entries per row. Given all rows, `attend` would split along the queries, which are few here.
    """
    rows, entries = q.shape[0], q.shape[2] * k.shape[2] * (q.shape[1] if scores.has_bias else 1)
    most = ROWS if q.is_cuda else ROWS // 4  # a CPU is fastest while a piece fits its cache
    if rows * entries <= most:
        return attend(q, k, v, scores, dropout=dropout)
    size = max(1, most // entries)
    parts = []
    # split, not slices: the gradient of every slice would be as large as the whole, and the cost quadratic again.
    for i, some in enumerate(zip(q.split(size), k.split(size), v.split(size), strict=True)):
        given = *some, cut(scores, slice(i * size, (i + 1) * size))
        if scores.has_bias:  # a bias per head: recomputed in the backward pass
            parts.append(checkpoint(attend, *given, dropout=dropout, use_reentrant=False))
        else:
            parts.append(attend(*given, dropout=dropout))
    return torch.cat(parts)


def cut(scores: Scores, piece: slice) -> Scores:
    """The scores of a slice of rows."""

    def some(x: Tensor | None) -> Tensor | None:
        return x if x is None or x.shape[0] == 1 else x[piece]

    return replace(
        scores, query_positions=some(scores.query_positions), key_positions=some(scores.key_positions),
        query_index=some(scores.query_index), key_index=some(scores.key_index), key_mask=some(scores.key_mask),
        query_documents=some(scores.query_documents), key_documents=some(scores.key_documents),
    )  # fmt: skip

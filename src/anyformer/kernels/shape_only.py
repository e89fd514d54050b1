"""Attention on `meta`: what a fused kernel would give and keep, as shapes alone.

It is one operation, so that whoever counts operations sees attention as a GPU runs it: no scores of T x S are made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from anyformer.core.attend import Scores

Shape = tuple[int, ...]


def attend_shapes(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """q (B,H,T,C), k (B,G,S,C), v (B,G,S,C') to (B,H,T,C') on `meta`."""
    out, _ = attention_shape(q, k, v, visible_pairs(q.shape[2], k.shape[2], scores))
    return out


def visible_pairs(queries: int, keys: int, scores: Scores) -> int:
    """Pairs of a query and a key that it may see by causal order and window; the newest query stands at the newest key.

    >>> visible_pairs(4, 4, Scores(scale=1.0, causal=True)), visible_pairs(4, 4, Scores(scale=1.0))
    (10, 16)
    """
    if not scores.causal and scores.window is None:
        return queries * keys
    window = min(keys, keys if scores.window is None else scores.window)
    first = keys - queries
    # Behind it and at its own place query i sees min(i + 1, window) keys: a staircase, then a flat part.
    stairs = max(0, window - first)
    behind = stairs * (first + 1 + first + stairs) // 2 + window * (queries - stairs)
    if scores.causal:
        return behind
    return 2 * behind - queries if not first else sum(
        min(keys - 1, i + window - 1) - max(0, i - window + 1) + 1 for i in range(first, keys)
    )  # fmt: skip


@torch.library.custom_op("anyformer::attention_shape", mutates_args=())
def attention_shape(q: Tensor, k: Tensor, v: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """The output (B,H,T,C') and the logarithm of each row's sum (B,H,T), which the backward pass wants."""
    raise NotImplementedError("attention by shapes is for the meta device")


@attention_shape.register_fake
def attention_out(q: Tensor, k: Tensor, v: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """Empty results."""
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("anyformer::attention_shape_backward", mutates_args=())
def attention_shape_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, pairs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients at queries, keys and values."""
    raise NotImplementedError("attention by shapes is for the meta device")


@attention_shape_backward.register_fake
def attention_gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Empty gradients."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.pairs = inputs
    ctx.save_for_backward(q, k, v, *output)


def backward(ctx: Any, grad: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, None]:
    q, k, v, _, _ = ctx.saved_tensors
    return (*attention_shape_backward(grad, q, k, v, ctx.pairs), None)


attention_shape.register_autograd(backward, setup_context=keep_inputs)


@register_flop_formula([torch.ops.anyformer.attention_shape])
def count_forward(q: Shape, k: Shape, v: Shape, pairs: int, *rest: Any, out_shape: Any = None, **named: Any) -> int:
    """Queries with keys and weights with values, all pairs. Kernels want one channel count, as `attend.sdpa` gives
    them: the smaller is filled up with zeros."""
    return 4 * q[0] * q[1] * q[2] * k[2] * max(q[3], v[3])


@register_flop_formula([torch.ops.anyformer.attention_shape_backward])
def count_backward(
    grad: Shape, q: Shape, k: Shape, v: Shape, pairs: int, *rest: Any, out_shape: Any = None, **named: Any
) -> int:
    """Gradients at values, weights, queries and keys: what a model costs, whatever multiplies. That a fused kernel
    computes the scores once more is part of the rate that it reaches."""
    return 2 * count_forward(q, k, v, pairs)

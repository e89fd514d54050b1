"""Attention on the meta device: the outputs and saved tensors of a fused kernel, as shapes only.

A single custom op, so that FLOP and memory counters see attention as a GPU runs it, without T x S scores.
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
    """Visible (query, key) pairs under causality and window; the last query is aligned with the last key.

    >>> visible_pairs(4, 4, Scores(scale=1.0, causal=True)), visible_pairs(4, 4, Scores(scale=1.0))
    (10, 16)
    """
    if not scores.causal and scores.window is None:
        return queries * keys
    window = min(keys, keys if scores.window is None else scores.window)
    first = keys - queries
    # Query i sees min(i + 1, window) keys up to its own index: a staircase, then a flat part.
    stairs = max(0, window - first)
    behind = stairs * (first + 1 + first + stairs) // 2 + window * (queries - stairs)
    if scores.causal:
        return behind
    return 2 * behind - queries if not first else sum(
        min(keys - 1, i + window - 1) - max(0, i - window + 1) + 1 for i in range(first, keys)
    )  # fmt: skip


@torch.library.custom_op("anyformer::attention_shape", mutates_args=())
def attention_shape(q: Tensor, k: Tensor, v: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """The output (B,H,T,C') and the logsumexp (B,H,T), which the backward pass needs."""
    raise NotImplementedError("attention by shapes is for the meta device")


@attention_shape.register_fake
def attention_out(q: Tensor, k: Tensor, v: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """Fake outputs."""
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("anyformer::attention_shape_backward", mutates_args=())
def attention_shape_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, pairs: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    raise NotImplementedError("attention by shapes is for the meta device")


@attention_shape_backward.register_fake
def attention_gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fake gradients."""
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
    """FLOPs of q @ k and weights @ v over all pairs. Kernels need equal channel counts, so the smaller is
    zero-padded, as in `attend.sdpa`."""
    return 4 * q[0] * q[1] * q[2] * k[2] * max(q[3], v[3])


@register_flop_formula([torch.ops.anyformer.attention_shape_backward])
def count_backward(
    grad: Shape, q: Shape, k: Shape, v: Shape, pairs: int, *rest: Any, out_shape: Any = None, **named: Any
) -> int:
    """FLOPs of the gradients of values, weights, queries and keys. These are model FLOPs: the recomputation of
    scores in a fused kernel is not counted."""
    return 2 * count_forward(q, k, v, pairs)

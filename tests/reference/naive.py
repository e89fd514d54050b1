"""Attention as a schoolbook writes it: loops over batch, head and query, one number at a time where it can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.reference.copying import parts_of

Pair = Callable[[int, int, int, int], Any]  # (row, head, query, key) -> value


def attend(
    x: Tensor,
    module: Any,
    *,
    scale: float,
    sees: Pair | None = None,
    bias: Pair | None = None,
    soft_cap: float | None = None,
    turn: Callable[[Tensor, int, int], Tensor] | None = None,
    key_extra: Callable[[int, int], Tensor] | None = None,
    value_extra: Callable[[int, int], Tensor] | None = None,
) -> Tensor:
    """Self-attention of x (B,T,D) with the weights of our module, concat and W_O included; returns (B,T,D).

    `turn(vector, row, position)` rotates queries and keys; `key_extra` and `value_extra` give Shaw's vectors for
    (query, key). A query that sees nothing gives zeros before W_O.
    """
    sizes = module.sizes
    w_q, w_k, w_v = parts_of(module.qkv.weight, *sizes)
    b_q, b_k, b_v = (0 * w[..., 0] for w in (w_q, w_k, w_v))
    if module.qkv.bias is not None:
        b_q, b_k, b_v = parts_of(module.qkv.bias, *sizes)
    rows = []
    for b in range(x.shape[0]):
        heads = []
        for h in range(sizes.heads):
            g = h // sizes.per_group
            queries = [prepare(w_q[h] @ token + b_q[h], module.q_norm, turn, b, i) for i, token in enumerate(x[b])]
            keys = [prepare(w_k[g] @ token + b_k[g], module.k_norm, turn, b, j) for j, token in enumerate(x[b])]
            values = [w_v[g] @ token + b_v[g] for token in x[b]]
            heads.append(
                torch.stack(
                    [
                        one_query(
                            b, h, i, queries[i], keys, values, scale, sees, bias, soft_cap, key_extra, value_extra
                        )
                        for i in range(x.shape[1])
                    ]
                )
            )
        joined = torch.cat(heads, -1)  # (T, H*C')
        out = joined @ module.out.weight.T
        rows.append(out if module.out.bias is None else out + module.out.bias)
    return torch.stack(rows)


def prepare(vector: Tensor, norm: nn.Module | None, turn: Any, row: int, position: int) -> Tensor:
    if norm is not None:  # RMSNorm, written out
        vector = vector / (vector.square().mean() + norm.eps).sqrt() * norm.weight
    return vector if turn is None else turn(vector, row, position)


def one_query(
    b: int, h: int, i: int, query: Tensor, keys: list[Tensor], values: list[Tensor], scale: float, sees: Pair | None,
    bias: Pair | None, soft_cap: float | None, key_extra: Any, value_extra: Any,
) -> Tensor:  # fmt: skip
    scores, seen = [], []
    for j, key in enumerate(keys):
        if sees is not None and not sees(b, h, i, j):
            continue
        score = query @ (key if key_extra is None else key + key_extra(i, j)) * scale
        if soft_cap is not None:
            score = soft_cap * torch.tanh(score / soft_cap)
        if bias is not None:
            added = bias(b, h, i, j)
            if added == -math.inf:
                continue
            score = score + added
        scores.append(score)
        seen.append(j)
    if not seen:
        return torch.zeros_like(values[0])
    weights = torch.stack(scores).exp()
    weights = weights / weights.sum()
    total = torch.zeros_like(values[0])
    for weight, j in zip(weights, seen, strict=True):
        total = total + weight * (values[j] if value_extra is None else values[j] + value_extra(i, j))
    return total

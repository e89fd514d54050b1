"""FlexAttention on CUDA: biases and sparse masks of long sequences without a T x S tensor."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from anyformer.core.attend import Scores, widen
from anyformer.kernels.compile import compile_function, load

load()  # before torch imports its compiler, which would create a folder in the shared temporary folder
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention  # noqa: E402

KERNELS = 256


@cache
def compile_flex_attention() -> Callable[..., Tensor]:
    """The compiled function, created on first use."""
    return compile_function(flex_attention, dynamic=False)


def flex_attend(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """`reference` for scores without user-given T x S tensors."""
    wide, out_channels = max(q.shape[3], v.shape[3]), v.shape[3]
    q, k, v = widen(q, wide), widen(k, wide), widen(v, wide)
    # Each kind of mask, bias and dtype is compiled separately, more than torch.compile's default limit. Beyond it,
    # FlexAttention would silently fall back to eager, which materialises all scores; here that is an error.
    with load().patch(recompile_limit=KERNELS, fail_on_recompile_limit_hit=True):
        out: Any = compile_flex_attention()(
            q, k, v, score_mod=bias_function(scores), block_mask=block_mask(scores, q, k), scale=scores.scale,
            enable_gqa=q.shape[1] != k.shape[1], kernel_options=blocks_of(scores),
        )  # fmt: skip
    return out[..., :out_channels]


def blocks_of(scores: Scores) -> dict[str, Any] | None:
    """Smaller tiles for a large bias: T5's buckets overflow an SM's shared memory at the default 128."""
    wide = scores.relative is not None and scores.relative.wide_bias
    return {"BLOCK_M": 64, "BLOCK_N": 64} if wide else None


def bias_function(scores: Scores) -> Callable[..., Tensor] | None:
    """The score_mod that adds the bias for the positions of query and key."""
    relative, tables = scores.relative, scores.tables
    query, key = scores.query_positions, scores.key_positions
    if relative is None or not relative.has_bias or query is None or key is None:
        return None

    def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        at, to = query[row(query, b), i], key[row(key, b), j]
        term = relative.bias_at(tables, h, at, to)
        return score + term.to(score.dtype)

    return add


def block_mask(scores: Scores, q: Tensor, k: Tensor) -> BlockMask | None:
    """The block mask of the visible keys; None if all are visible."""
    queries, keys = q.shape[2], k.shape[2]
    if not scores.causal and not scores.hides(queries, keys):
        return None
    index, key_index = scores.query_index, scores.key_index
    mask, documents, key_documents = scores.key_mask, scores.query_documents, scores.key_documents

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = i >= 0
        if index is not None and key_index is not None:
            distance = index[row(index, b), i] - key_index[row(key_index, b), j]
            if scores.causal:
                seen = seen & (distance >= 0)
            if scores.window is not None:
                seen = seen & ((distance if scores.causal else distance.abs()) < scores.window)
        if mask is not None:
            seen = seen & mask[b, j]
        if documents is not None and key_documents is not None:
            seen = seen & (documents[b, i] == key_documents[b, j])
        return seen

    rows = None if mask is None and documents is None and (index is None or index.shape[0] == 1) else q.shape[0]
    return create_block_mask(visible, rows, None, queries, keys, device=str(q.device))


def row(x: Tensor, b: Tensor) -> Tensor | int:
    """The batch row of a tensor whose first axis is B or 1."""
    return 0 if x.shape[0] == 1 else b

"""Block-sparse masked attention on a CPU: a block of queries is multiplied only with keys that one of them can see.

Torch's flash attention kernel runs on a block of queries at a time, with the slice of keys left visible by the sliding
window, causality or the documents of a packed row. Time is linear in T x window, memory in T: masks are built per
block and rebuilt in the backward pass. A custom op for torch.compile, since the slices depend on the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.core.attend import Scores, spread, widen

BLOCK = 128  # queries per block: fewer make slow matmuls, more read too many keys outside a small window
APART = 2**32  # offset between the token indices of two documents: more than a document has tokens

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """`reference` for scores without a bias or user-given T x S tensors."""
    channels, out_channels = max(q.shape[3], v.shape[3]), v.shape[3]
    q, k, v = (widen(x, channels) for x in (q, spread(k, q.shape[1]), spread(v, q.shape[1])))
    if torch.is_autocast_enabled("cpu"):  # autocast does not cover custom ops
        q, k, v = (x.to(torch.get_autocast_dtype("cpu")) for x in (q, k, v))
    assert scores.query_index is not None and scores.key_index is not None
    out, _ = masked_attention(
        q, k, v, scores.query_index, scores.key_index, scores.key_mask, scores.query_documents, scores.key_documents,
        scores.causal, scores.window, scores.scale, scores.gaps,
    )  # fmt: skip
    return out[..., :out_channels]


# ---------------------------------------------------------------- visible keys of a block of queries


class VisibleBlock(NamedTuple):
    """A block of queries, the range of keys that they can see, and the mask within it."""

    rows: slice
    keys: slice
    causal: bool = False  # the kernel's built-in causal mask suffices
    mask: Tensor | None = None  # (B or 1, 1, t, s) added to the scores
    live: Tensor | None = None  # (B, 1, t, 1) whether a query sees anything; None where all do


def visible_blocks(scores: Scores, queries: int, keys: int, dtype: torch.dtype) -> Iterator[VisibleBlock]:
    """Blocks of all queries that see any key."""
    # Without padding, documents and gaps a token's index is its column, and a window's mask is a fixed band.
    if scores.sees_itself and scores.key_documents is None and scores.window is not None:
        yield from window_blocks(scores.window, scores.causal, queries, keys, dtype)
        return
    blocks = ranges(0, queries, block_size(dtype))
    for (start, stop), (low, high) in zip(blocks, key_ranges(scores, blocks, keys), strict=True):
        if low < high:
            rows, seen = slice(start, stop), slice(low, high)
            mask, live = make_mask(scores, rows, seen, dtype)
            yield VisibleBlock(rows, seen, mask=mask, live=live)


def window_blocks(window: int, causal: bool, queries: int, keys: int, dtype: torch.dtype) -> Iterator[VisibleBlock]:
    """Blocks of sliding-window attention, where the queries are the last `queries` of `keys` tokens."""
    older, ahead = keys - queries, 0 if causal else window - 1
    # Until the text fills the window, the causal mask alone suffices; without causality, queries whose window covers
    # the whole text need no mask.
    free = slice(0, 0 if older else window) if causal else slice(max(0, queries - window), window - older)
    free = slice(free.start, min(free.stop, queries)) if free.start < free.stop else slice(0, 0)
    if free.stop:
        yield VisibleBlock(free, slice(0, free.stop if causal else keys), causal)
    size, span = block_size(dtype), window + ahead  # queries per block, and keys visible to each
    seen = torch.ones(size, size + span - 1, dtype=torch.bool).triu_().tril_(span - 1)
    band = hide(seen, dtype)  # column 0 is the first key visible to the first query
    for start, stop in (*ranges(0, free.start, size), *ranges(free.stop, queries, size)):
        first = older + start - (window - 1)
        low, high = max(0, first), min(keys, older + stop + ahead)
        yield VisibleBlock(slice(start, stop), slice(low, high), mask=band[: stop - start, low - first : high - first])


def block_size(dtype: torch.dtype) -> int:
    """Queries per block: larger in half precision, where matrices are repacked for each block."""
    return BLOCK if dtype.itemsize >= 4 else 2 * BLOCK


def ranges(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """The range from `start` to `stop` in blocks of `size`."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def make_mask(scores: Scores, rows: slice, keys: slice, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """The additive mask of a block (None if nothing is hidden), and which of its queries see any key (None if all)."""
    seen = scores.visible(rows, keys)
    if seen is None or bool(seen.all()):
        return None, None
    live = None
    if not scores.sees_itself:
        live = seen.any(-1, keepdim=True)
        seen = seen | ~live  # a fully masked row attends everywhere, then its result is zeroed
    return hide(seen, dtype), live


def hide(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask: 0 for a visible key, -inf otherwise."""
    return torch.where(seen, torch.zeros((), dtype=dtype), torch.full((), -torch.inf, dtype=dtype))


def key_ranges(scores: Scores, blocks: list[tuple[int, int]], keys: int) -> list[tuple[int, int]]:
    """For each block of queries, the half-open range of keys visible in any row of the batch.

    Keys are sorted by document, then by index. So a block's range begins with that of its first query and ends with
    that of its last, wherever there is padding between tokens.
    """
    assert scores.query_index is not None and scores.key_index is not None
    places, key_places, begin = scores.query_index, scores.key_index, torch.zeros_like(scores.query_index)
    if scores.query_documents is not None and scores.key_documents is not None:
        begin = scores.query_documents * APART
        places, key_places = places + begin, key_places + scores.key_documents * APART  # (B,T), (B,S)
    if not is_sorted(places) or not is_sorted(key_places):
        return [(0, keys)] * len(blocks)
    window = APART if scores.window is None else scores.window
    lowest = torch.maximum(begin, places - (window - 1))
    highest = places if scores.causal else torch.minimum(begin + APART, places + window) - 1
    low = find(key_places, lowest[:, [start for start, _ in blocks]], right=False).amin(0)
    high = find(key_places, highest[:, [stop - 1 for _, stop in blocks]], right=True).amax(0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def is_sorted(places: Tensor) -> bool:
    return bool((places[:, 1:] >= places[:, :-1]).all())


def find(rows: Tensor, values: Tensor, *, right: bool) -> Tensor:
    """`searchsorted` of values (B or 1, n) in sorted rows (B or 1, S)."""
    batch = max(len(rows), len(values))
    rows, values = (x.expand(batch, -1).contiguous() for x in (rows, values))
    return torch.searchsorted(rows, values, right=right)


# ---------------------------------------------------------------- the custom op and its backward pass


def describe(
    query_index: Tensor, key_index: Tensor, key_mask: Tensor | None, query_documents: Tensor | None,
    key_documents: Tensor | None, causal: bool, window: int | None, scale: float, gaps: bool,
) -> Scores:  # fmt: skip
    """Rebuild `Scores` from the arguments of the custom op, which takes tensors and numbers only."""
    return Scores(
        scale=scale, causal=causal, window=window, query_index=query_index, key_index=key_index, key_mask=key_mask,
        query_documents=query_documents, key_documents=key_documents, gaps=gaps,
    )  # fmt: skip


@torch.library.custom_op("anyformer::masked_attention", mutates_args=(), device_types="cpu")
def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, query_index: Tensor, key_index: Tensor, key_mask: Tensor | None,
    query_documents: Tensor | None, key_documents: Tensor | None, causal: bool, window: int | None, scale: float,
    gaps: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention output (B,H,T,C) and logsumexp (B,H,T), which the backward pass needs."""
    scores = describe(
        query_index, key_index, key_mask, query_documents, key_documents, causal, window, scale, gaps
    )  # fmt: skip
    q, k, v = (with_dense_channels(x) for x in (q, k, v))
    out, sums = zero_results(q)
    for rows, keys, causal_alone, mask, live in visible_blocks(scores, q.shape[2], k.shape[2], q.dtype):
        part, part_sums = flash(
            q[:, :, rows], k[:, :, keys], v[:, :, keys], is_causal=causal_alone, attn_mask=mask, scale=scale
        )
        out[:, :, rows] = part if live is None else part * live
        sums[:, :, rows] = part_sums
    return out, sums


def zero_results(q: Tensor, *rules: object) -> tuple[Tensor, Tensor]:
    """Zeros for the output (B,H,T,C) and the logsumexp (B,H,T)."""
    batch, heads, queries, _ = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    return zeros_by_token(q, q.dtype), q.new_zeros(batch, heads, queries, dtype=exact)


def zeros_by_token(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros (B,H,T,C) with the memory layout (B,T,H,C) of the projections."""
    batch, heads, length, channels = x.shape
    return x.new_zeros(batch, length, heads, channels, dtype=dtype).transpose(1, 2)


def with_dense_channels(x: Tensor) -> Tensor:
    return x if x.stride(3) == 1 else x.contiguous()


@torch.library.custom_op("anyformer::masked_attention_backward", mutates_args=(), device_types="cpu")
def masked_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, query_index: Tensor, key_index: Tensor,
    key_mask: Tensor | None, query_documents: Tensor | None, key_documents: Tensor | None, causal: bool,
    window: int | None, scale: float, gaps: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of queries, keys and values, from that of the output."""
    scores = describe(
        query_index, key_index, key_mask, query_documents, key_documents, causal, window, scale, gaps
    )  # fmt: skip
    grad, q, k, v = (with_dense_channels(x) for x in (grad, q, k, v))
    exact = torch.promote_types(q.dtype, torch.float32)
    d_q, d_k, d_v = (zeros_by_token(x, exact) for x in (q, k, v))
    for rows, keys, causal_alone, mask, live in visible_blocks(scores, q.shape[2], k.shape[2], q.dtype):
        part = grad[:, :, rows] if live is None else grad[:, :, rows] * live
        parts = flash_backward(
            part, q[:, :, rows], k[:, :, keys], v[:, :, keys], out[:, :, rows], sums[:, :, rows], 0.0, causal_alone,
            attn_mask=mask, scale=scale,
        )  # fmt: skip
        d_q[:, :, rows] = parts[0]
        d_k[:, :, keys] += parts[1]  # several blocks add to a key's gradient: accumulate in full precision
        d_v[:, :, keys] += parts[2]
    return d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype)


masked_attention.register_fake(zero_results)


@masked_attention_backward.register_fake
def zero_gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros for the three gradients."""
    return zeros_by_token(q, q.dtype), zeros_by_token(k, k.dtype), zeros_by_token(v, v.dtype)


def keep_results(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save tensors linear in T; masks are rebuilt."""
    ctx.save_for_backward(*inputs[:3], *output, *inputs[3:8])
    ctx.rules = inputs[8:]
    ctx.set_materialize_grads(False)


def give_gradients(ctx: Any, grad: Tensor | None, of_sums: None) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 9
    if grad is None:
        return None, None, None, *nothing
    return *masked_attention_backward(grad, *ctx.saved_tensors, *ctx.rules), *nothing


masked_attention.register_autograd(give_gradients, setup_context=keep_results)

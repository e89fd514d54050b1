"""Decode attention of a few new tokens per row over a static KV cache: each row reads only its own filled columns.

Token p of a row is in column p of its buffers (core/static_cache.py), so a row's length is its query's index, a tensor
on the device: no host sync, fixed shapes, and the whole can be captured in a CUDA graph. The heads of a group load
their keys and values once. Long buffers are split into chunks that run in parallel and are then combined (split-KV);
the splits depend on the buffer size alone, so the rounding of a row does not depend on the rest of the batch.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.core import attend
from anyformer.core.attend import Scores
from anyformer.core.static_cache import next_power_of_two

log = logging.getLogger("anyformer")

QUERIES = 8  # most new tokens per row: one in a decode step, a few when draft tokens are verified
CHANNELS = 256
LANES = 128  # most queries times heads of a group
HELD = 32768  # most bytes of a group's queries: more does not fit the registers
TYPES = (torch.bfloat16, torch.float16, torch.float32)
WHOLE = 512  # columns up to which a row is not split: combining splits would cost a second launch
CHUNK = 256  # columns per split beyond that
TOGETHER = 16  # splits combined at a time


class SplitPlan(NamedTuple):
    """Launch configuration: columns per tile and per split, warps, and pipeline stages."""

    block: int
    chunk: int
    warps: int
    stages: int


def plan_splits(lanes: int, channels: int, columns: int, size: int) -> SplitPlan:
    """The configuration for queries times heads of a group, padded channels, buffer columns and bytes per element."""
    chunk = WHOLE if columns <= WHOLE else CHUNK
    if lanes == 1:
        return SplitPlan(max(16, min(128, 8192 // channels)), chunk, 4, 2)
    wide = channels * size  # bytes of a column
    warps = 4 if max(16, next_power_of_two(lanes)) * wide <= 8192 else 8
    return SplitPlan(64 if wide <= 256 else 32 if wide <= 512 else 16, chunk, warps, 3 if wide <= 256 else 2)


def why_unsupported(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> str | None:
    """Why this kernel does not support the inputs, or None; checks shapes, dtypes and Python values only (no sync)."""
    if not scores.gaps or not scores.causal:
        return "keys are not in a static cache"
    if scores.key_mask is not None or scores.key_documents is not None:
        return "padding or documents hide keys"
    if scores.allowed is not None or scores.added is not None:
        return "a mask of the caller's own"
    relative = scores.relative
    if relative is not None and relative.needs_weights:
        return f"{type(relative).__name__} positions need the weights"
    if relative is not None and relative.has_bias and relative.slopes(scores.tables) is None:
        return f"the bias of {type(relative).__name__} is not a slope"
    if q.dtype not in TYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        return f"{q.dtype} queries and {k.dtype} keys"
    channels, lanes = next_power_of_two(max(q.shape[3], v.shape[3])), q.shape[1] // k.shape[1] * q.shape[2]
    held = next_power_of_two(lanes) * channels * q.dtype.itemsize
    if q.shape[2] > QUERIES or lanes > LANES or channels > CHANNELS or held > HELD:
        return f"{q.shape[2]} new tokens in {q.shape[1] // k.shape[1]} heads a group of {q.shape[3]} channels"
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return "it has no backward pass"
    return None


def attend_static_cache(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> Tensor:
    """`reference` for inputs whose `why_unsupported` is None. q (B,H,T,C); k (B,G,L,C); v (B,G,L,C')."""
    assert scores.query_index is not None
    slopes = None if scores.relative is None else scores.relative.slopes(scores.tables)
    return rows_attention(
        q, k, v, scores.query_index.expand(q.shape[0], -1), slopes, scores.scale, scores.window or 0,
        scores.soft_cap or 0.0,
    )  # fmt: skip


@cache
def try_out(device: torch.device) -> bool:
    """Enable the kernel if it agrees with the reference on this device; returns whether it does.

    GPUs, drivers and Triton versions differ, and a wrong result would go unnoticed. Takes a second or two once per
    device.
    """
    if device.type != "cuda":
        return False
    try:
        gap = max(gap_to_reference(device, kind) / torch.finfo(kind).eps for kind in TYPES)
    except Exception as error:  # no Triton, or a GPU that it does not support
        log.warning("torch's own attention is used for decoding: our kernel does not run here (%s)", error)
        return False
    if gap > 64:
        log.warning("torch's own attention is used for decoding: our kernel is off by %.0f units here", gap)
        return False
    attend.rows_tried = True
    return True


def gap_to_reference(device: torch.device, kind: torch.dtype) -> float:
    """The largest difference on a small example with grouped heads, and rows of one token, some tokens and all."""
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(3, heads, length, 64, generator=draw).to(device, kind)
        for heads, length in ((8, 1), (2, 600), (2, 600))
    )
    index, columns = torch.tensor([[0], [250], [599]], device=device), torch.arange(600, device=device)[None]
    scores = attend.Scores(scale=0.125, causal=True, gaps=True, query_index=index, key_index=columns)
    with torch.no_grad():
        found, right = attend_static_cache(q, k, v, scores), attend.reference(q.float(), k.float(), v.float(), scores)
    return float((found.float() - right).abs().max())


# A custom op, opaque to torch.compile.
@torch.library.custom_op("anyformer::rows_attention", mutates_args=())
def rows_attention(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, slopes: Tensor | None, scale: float, window: int, cap: float
) -> Tensor:
    """Query t of row b attends to columns up to `index` (B,T); window or cap 0 means none."""
    lanes = q.shape[1] // k.shape[1] * q.shape[2]
    plan = plan_splits(lanes, next_power_of_two(max(q.shape[3], v.shape[3])), k.shape[2], q.element_size())
    return launch(q, k, v, index, slopes, scale, window, cap, plan)


@rows_attention.register_fake
def shape_of(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, slopes: Tensor | None, scale: float, window: int, cap: float
) -> Tensor:
    """An uninitialised result (B,H,T,C') with the memory layout (B,T,H,C') that the output projection expects."""
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)


@torch.library.custom_op("anyformer::rows_attention_put", mutates_args=("keys", "values"))
def rows_attention_put(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, index: Tensor, slopes: Tensor | None, scale: float,
    window: int, cap: float,
) -> Tensor:  # fmt: skip
    """The same for one query per row, fused with the cache write of its k and v (B,G,1,C) to column `index` (B,1)."""
    channels = next_power_of_two(max(q.shape[3], v.shape[3]))
    plan = plan_splits(q.shape[1] // k.shape[1], channels, keys.shape[2], q.element_size())
    return launch(q, keys, values, index, slopes, scale, window, cap, plan, (k, v))


@rows_attention_put.register_fake
def shape_of_put(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, index: Tensor, slopes: Tensor | None, scale: float,
    window: int, cap: float,
) -> Tensor:  # fmt: skip
    """As without the cache write."""
    return shape_of(q, keys, values, index, slopes, scale, window, cap)


@cache
def starts_early(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it is finishing (programmatic dependent launch)."""
    ours = device.type == "cuda" and torch.version.hip is None
    return ours and torch.cuda.get_device_capability(device) >= (9, 0)


def launch(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, slopes: Tensor | None, scale: float, window: int, cap: float,
    plan: SplitPlan, new: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Launch the attention kernel and, if rows are split, the one that combines the splits."""
    from anyformer.kernels.decode_triton import attend_rows, join_splits

    (batch, heads, queries, channels), (_, groups, columns, value_channels) = q.shape, v.shape
    q = q if q.stride(3) == 1 else q.contiguous()
    assert k.stride(3) == 1 and v.stride(3) == 1
    per_group = heads // groups
    lanes, splits = per_group * queries, -(-columns // plan.chunk)
    out = shape_of(q, k, v, index, slopes, scale, window, cap)
    held = (batch * groups * splits * lanes,) if splits > 1 else (1,)
    peaks, sums = (torch.empty(held, device=q.device, dtype=torch.float32) for _ in range(2))
    means = torch.empty(held[0] * value_channels, device=q.device, dtype=torch.float32)
    padded = 1 if lanes == 1 else max(16, next_power_of_two(lanes))  # tensor cores need at least 16 rows
    early = starts_early(q.device)
    facts = {"HEADS": per_group, "QUERIES": queries, "VALUE": value_channels, "CHUNK": plan.chunk, "WINDOW": window > 0,
             "EARLY": early} | ({"launch_pdl": True} if early else {})  # fmt: skip
    own = [one if one.stride(3) == 1 else one.contiguous() for one in new or ()]
    new_strides = [step for one in own for step in one.stride()[:2]] or [0] * 4
    values = max(16, next_power_of_two(value_channels))
    attend_rows[batch * groups, splits](
        q, k, v, *(own or (None, None)), index, slopes, out, means, peaks, sums, scale, cap, window, columns, groups,
        splits, *new_strides, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], *index.stride(),
        LANES=padded, KEY=channels, KEYS=max(16, next_power_of_two(channels)), VALUES=values, BLOCK=plan.block,
        CAP=cap > 0, SLOPED=slopes is not None, SPLIT=splits > 1, num_warps=plan.warps, num_stages=plan.stages, **facts,
    )  # fmt: skip
    if splits > 1:
        join_splits[batch * groups, lanes](
            index, out, means, peaks, sums, window, groups, splits, *out.stride()[:3], *index.stride(),
            VALUES=values, TOGETHER=TOGETHER, num_warps=4 if value_channels > 64 else 2, **facts,
        )  # fmt: skip
    return out

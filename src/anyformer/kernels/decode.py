"""Attention of a few new tokens a row over a static cache: each row reads its own columns and no further.

Token p of a row stands in column p of its buffers (core/static_cache.py), so how far a row reaches is its query's
index, a tensor on the device: nothing waits for the host, all shapes are fixed, and a CUDA graph may hold the whole of
it. The heads of a group read their keys and values once. Long buffers are cut into chunks that are worked on side by
side and then joined; where the cuts are depends on the buffer alone, so no neighbour changes a row's rounding.
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

QUERIES = 8  # new tokens a row at most: one in a decode step, a few when a proposal is verified
CHANNELS = 256
LANES = 128  # queries times heads of a group
HELD = 32768  # bytes of the queries of a group: more does not fit a program's registers
TYPES = (torch.bfloat16, torch.float16, torch.float32)
WHOLE = 512  # columns up to which one program reads all of a row: joining chunks would cost a second launch
CHUNK = 256  # columns of a program beyond that
TOGETHER = 16  # chunks joined at a time


class SplitPlan(NamedTuple):
    """How the work is cut: columns of a block and of a chunk, warps of a program, blocks on their way at once."""

    block: int
    chunk: int
    warps: int
    stages: int


def plan_splits(lanes: int, channels: int, columns: int, size: int) -> SplitPlan:
    """The cut for so many queries of a group, padded channels of a head, columns of the buffers, bytes of a number."""
    chunk = WHOLE if columns <= WHOLE else CHUNK
    if lanes == 1:
        return SplitPlan(max(16, min(128, 8192 // channels)), chunk, 4, 2)
    wide = channels * size  # bytes of a column
    warps = 4 if max(16, next_power_of_two(lanes)) * wide <= 8192 else 8
    return SplitPlan(64 if wide <= 256 else 32 if wide <= 512 else 16, chunk, warps, 3 if wide <= 256 else 2)


def why_unsupported(q: Tensor, k: Tensor, v: Tensor, scores: Scores) -> str | None:
    """Why these inputs are not for this kernel, in words, or None; only shapes, types and Python facts are asked."""
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
    """As `reference`, for descriptions without a `why_unsupported`. q (B,H,T,C); k (B,G,L,C); v (B,G,L,C')."""
    assert scores.query_index is not None
    slopes = None if scores.relative is None else scores.relative.slopes(scores.tables)
    return rows_attention(
        q, k, v, scores.query_index.expand(q.shape[0], -1), slopes, scores.scale, scores.window or 0,
        scores.soft_cap or 0.0,
    )  # fmt: skip


@cache
def try_out(device: torch.device) -> bool:
    """Let the kernel be chosen once it has given the reference's answers on this device; whether it has.

    Cards, drivers and versions of Triton differ, and a wrong answer would go unnoticed. It takes a second or two, where
    rows are made, and costs nothing afterwards.
    """
    if device.type != "cuda":
        return False
    try:
        gap = max(gap_to_reference(device, kind) / torch.finfo(kind).eps for kind in TYPES)
    except Exception as error:  # no Triton, or a card it does not know
        log.warning("torch's own attention is used for decoding: our kernel does not run here (%s)", error)
        return False
    if gap > 64:
        log.warning("torch's own attention is used for decoding: our kernel is off by %.0f units here", gap)
        return False
    attend.rows_tried = True
    return True


def gap_to_reference(device: torch.device, kind: torch.dtype) -> float:
    """The largest difference on a small example with grouped heads, and rows that have one token, some and all."""
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


# One node for the compiler, which neither looks inside nor takes it apart.
@torch.library.custom_op("anyformer::rows_attention", mutates_args=())
def rows_attention(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, slopes: Tensor | None, scale: float, window: int, cap: float
) -> Tensor:
    """Query t of row b sees the columns up to `index` (B,T); window and cap 0 mean none."""
    lanes = q.shape[1] // k.shape[1] * q.shape[2]
    plan = plan_splits(lanes, next_power_of_two(max(q.shape[3], v.shape[3])), k.shape[2], q.element_size())
    return launch(q, k, v, index, slopes, scale, window, cap, plan)


@rows_attention.register_fake
def shape_of(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, slopes: Tensor | None, scale: float, window: int, cap: float
) -> Tensor:
    """An empty result (B,H,T,C') that lies as (B,T,H,C') in memory, where the next layer wants it."""
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3]).transpose(1, 2)


@torch.library.custom_op("anyformer::rows_attention_put", mutates_args=("keys", "values"))
def rows_attention_put(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, index: Tensor, slopes: Tensor | None, scale: float,
    window: int, cap: float,
) -> Tensor:  # fmt: skip
    """The same for one query a row, whose own k and v (B,G,1,C) are put in column `index` (B,1) first: one kernel."""
    channels = next_power_of_two(max(q.shape[3], v.shape[3]))
    plan = plan_splits(q.shape[1] // k.shape[1], channels, keys.shape[2], q.element_size())
    return launch(q, keys, values, index, slopes, scale, window, cap, plan, (k, v))


@rows_attention_put.register_fake
def shape_of_put(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, index: Tensor, slopes: Tensor | None, scale: float,
    window: int, cap: float,
) -> Tensor:  # fmt: skip
    """As without putting."""
    return shape_of(q, keys, values, index, slopes, scale, window, cap)


@cache
def starts_early(device: torch.device) -> bool:
    """Whether a kernel may start while what precedes it ends (programmatic dependent launch)."""
    ours = device.type == "cuda" and torch.version.hip is None
    return ours and torch.cuda.get_device_capability(device) >= (9, 0)


def launch(
    q: Tensor, k: Tensor, v: Tensor, index: Tensor, slopes: Tensor | None, scale: float, window: int, cap: float,
    plan: SplitPlan, new: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Both kernels, or the first alone where a row is one chunk."""
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
    padded = 1 if lanes == 1 else max(16, next_power_of_two(lanes))  # matrix units work on 16 rows at least
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

"""The two Triton kernels of decode.py; imported only where they run.

Lanes are the queries of one group of heads, query by query: lane = query * HEADS + head. Scores are kept in base 2,
since the hardware's exponential is exp2.
"""

from __future__ import annotations

from anyformer.kernels.triton import cuda, jit, tl


@jit
def adjust_scores(scores, distance, slope, scale, cap, CAP: tl.constexpr, SLOPED: tl.constexpr):
    """Scaled, soft-capped and biased attention scores q.k, times log2(e)."""
    scores = scores * scale
    if CAP:
        scores = cap - 2.0 * cap / (tl.exp(scores * (2.0 / cap)) + 1.0)  # cap * tanh(scores / cap)
    if SLOPED:
        scores = scores - slope * distance
    return scores * 1.4426950408889634  # log2(e)


@jit
def attend_rows(
    Q, K, V, NEW_K, NEW_V, INDEX, SLOPES, OUT, MEANS, PEAKS, SUMS,
    scale, cap, window, columns, groups, splits, nk_row, nk_group, nv_row, nv_group,
    q_row, q_head, q_query, k_row, k_group, k_column, v_row, v_group, v_column, o_row, o_head, o_query, i_row, i_query,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, LANES: tl.constexpr,
    KEY: tl.constexpr, VALUE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, SLOPED: tl.constexpr, SPLIT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row, one group of heads, one split of columns; KEYS and VALUES are the channels, padded to a power of two.

    With NEW_K and NEW_V, the newest key and value are read from there and also written to the cache for later steps.
    """
    row = (tl.program_id(0) // groups).to(tl.int64)  # many long rows have more than 2^31 elements; one row does not
    group = tl.program_id(0) % groups
    split = tl.program_id(1)
    key, value = tl.arange(0, KEYS), tl.arange(0, VALUES)
    place = tl.arange(0, BLOCK)
    PUT: tl.constexpr = NEW_K is not None
    if EARLY and not PUT:  # the preceding kernel may write the newest column
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()

    # Loop bounds follow the row's length, so that a short row costs little in a long buffer.
    lane = tl.arange(0, LANES)
    live = lane < HEADS * QUERIES
    query, head = tl.where(live, lane // HEADS, 0), group * HEADS + lane % HEADS
    index = tl.load(INDEX + row * i_row + query * i_query).to(tl.int32)  # (LANES,)
    newest = tl.max(index, 0)
    stop = tl.minimum(tl.minimum(newest + (0 if PUT else 1), columns), (split + 1) * CHUNK)
    start = split * CHUNK
    own = PUT & (newest >= start) & (newest < start + CHUNK) & (newest < columns)  # the newest column is in this split
    if WINDOW:
        oldest = tl.maximum(tl.min(index, 0) - window + 1, 0)
        start = tl.maximum(start, oldest // BLOCK * BLOCK)

    queries = Q + row * q_row + query[:, None] * q_query + head[:, None] * q_head + key[None, :]
    slope = tl.zeros((LANES,), tl.float32)
    if SLOPED:
        slope = tl.load(SLOPES + head, mask=live, other=0.0).to(tl.float32)
    keys = K + row * k_row + group * k_group + key[None, :]
    values = V + row * v_row + group * v_group + value[None, :]

    if LANES == 1:
        # A single query: every column of a tile keeps its own running softmax; they are combined once, after the loop.
        # Each tile is loaded while the one before is processed; the first, of old columns, while the preceding kernel
        # finishes.
        column = start + place
        k = tl.load(keys + column[:, None] * k_column, mask=(column < stop)[:, None] & (key < KEY)[None, :], other=0.0)
        v = tl.load(
            values + column[:, None] * v_column, mask=(column < stop)[:, None] & (value < VALUE)[None, :], other=0.0
        )
        if EARLY and PUT:
            cuda.gdc_wait()
            cuda.gdc_launch_dependents()
        q = tl.load(queries, mask=live[:, None] & (key < KEY)[None, :], other=0.0)  # (LANES, KEYS)
        q_one = tl.sum(q.to(tl.float32), 0)  # (KEYS,)
        slope_one = tl.sum(slope, 0)
        peaks = tl.full((BLOCK,), float("-inf"), tl.float32)
        sums = tl.zeros((BLOCK,), tl.float32)
        means = tl.zeros((BLOCK, VALUES), tl.float32)
        for first in range(start, stop, BLOCK):
            column = first + place
            after = column + BLOCK
            there = (after < stop)[:, None]
            k_after = tl.load(keys + after[:, None] * k_column, mask=there & (key < KEY)[None, :], other=0.0)
            v_after = tl.load(values + after[:, None] * v_column, mask=there & (value < VALUE)[None, :], other=0.0)
            scores = tl.sum(k.to(tl.float32) * q_one[None, :], 1)
            scores = adjust_scores(scores, (newest - column).to(tl.float32), slope_one, scale, cap, CAP, SLOPED)
            seen = column < stop
            if WINDOW:
                seen = seen & (newest - column < window)
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(peaks, scores)
            base = tl.where(higher == float("-inf"), 0.0, higher)  # no column so far: avoid inf - inf
            fade, weight = tl.exp2(peaks - base), tl.exp2(scores - base)
            sums = sums * fade + weight
            means = means * fade[:, None] + weight[:, None] * v.to(tl.float32)
            peaks = higher
            k, v = k_after, v_after
        peak = tl.max(peaks, 0)
        if PUT:
            k_new = tl.load(NEW_K + row * nk_row + group * nk_group + key, mask=key < KEY, other=0.0)
            v_new = tl.load(NEW_V + row * nv_row + group * nv_group + value, mask=value < VALUE, other=0.0)
            latest = adjust_scores(tl.sum(q_one * k_new.to(tl.float32), 0), 0.0, slope_one, scale, cap, CAP, SLOPED)
            latest = tl.where(own, latest, float("-inf"))
            peak = tl.maximum(peak, latest)
        base = tl.where(peak == float("-inf"), 0.0, peak)
        share = tl.exp2(peaks - base)
        total = tl.sum(sums * share, 0)
        mean = tl.sum(means * share[:, None], 0)  # (VALUES,)
        if PUT:
            total += tl.exp2(latest - base)
            mean += tl.exp2(latest - base) * v_new.to(tl.float32)
        if SPLIT:
            at_split = (tl.program_id(0).to(tl.int64) * splits + split) * HEADS * QUERIES
            wanted = (start < stop) | own
            tl.store(MEANS + at_split * VALUE + value, mean, mask=(value < VALUE) & wanted)
            tl.store(PEAKS + at_split, peak, mask=wanted)
            tl.store(SUMS + at_split, total, mask=wanted)
        else:
            out = OUT + row * o_row + group * o_head + value
            tl.store(out, (mean / total).to(OUT.dtype.element_ty), mask=value < VALUE)
    else:
        if EARLY and PUT:
            cuda.gdc_wait()
            cuda.gdc_launch_dependents()
        q = tl.load(queries, mask=live[:, None] & (key < KEY)[None, :], other=0.0)  # (LANES, KEYS)
        peaks = tl.full((LANES,), float("-inf"), tl.float32)
        sums = tl.zeros((LANES,), tl.float32)
        means = tl.zeros((LANES, VALUES), tl.float32)
        if PUT:
            k_new = tl.load(NEW_K + row * nk_row + group * nk_group + key, mask=key < KEY, other=0.0)
            v_new = tl.load(NEW_V + row * nv_row + group * nv_group + value, mask=value < VALUE, other=0.0)
            latest = tl.sum(q.to(tl.float32) * k_new.to(tl.float32)[None, :], 1)
            latest = adjust_scores(latest, 0.0, slope, scale, cap, CAP, SLOPED)
            peaks = tl.where(own, latest, peaks)
            sums = tl.where(own, 1.0, sums)
            means = tl.where(own, v_new.to(tl.float32)[None, :], means)
        for first in range(start, stop, BLOCK):
            column = first + place
            there = column < stop
            k = tl.load(keys + column[:, None] * k_column, mask=there[:, None] & (key < KEY)[None, :], other=0.0)
            v = tl.load(values + column[:, None] * v_column, mask=there[:, None] & (value < VALUE)[None, :], other=0.0)
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (LANES, BLOCK); plain float32, not tf32
            distance = index[:, None] - column[None, :]
            scores = adjust_scores(scores, distance.to(tl.float32), slope[:, None], scale, cap, CAP, SLOPED)
            seen = there[None, :] & (distance >= 0)
            if WINDOW:
                seen = seen & (distance < window)
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(peaks, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)
            fade, weight = tl.exp2(peaks - base), tl.exp2(scores - base[:, None])
            sums = sums * fade + tl.sum(weight, 1)
            means = means * fade[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
            peaks = higher
        if SPLIT:
            at_split = (tl.program_id(0).to(tl.int64) * splits + split) * HEADS * QUERIES + lane
            wanted = live & ((start < stop) | own)
            held = MEANS + at_split[:, None] * VALUE + value[None, :]
            tl.store(held, means, mask=wanted[:, None] & (value < VALUE)[None, :])
            tl.store(PEAKS + at_split, peaks, mask=wanted)
            tl.store(SUMS + at_split, sums, mask=wanted)
        else:
            out = OUT + row * o_row + query[:, None] * o_query + head[:, None] * o_head + value[None, :]
            mean = means / tl.where(live, sums, 1.0)[:, None]
            tl.store(out, mean.to(OUT.dtype.element_ty), mask=live[:, None] & (value < VALUE)[None, :])
    if PUT:
        tl.store(K + row * k_row + group * k_group + newest * k_column + key, k_new, mask=(key < KEY) & own)
        tl.store(V + row * v_row + group * v_group + newest * v_column + value, v_new, mask=(value < VALUE) & own)


@jit
def join_splits(
    INDEX, OUT, MEANS, PEAKS, SUMS, window, groups, splits, o_row, o_head, o_query, i_row, i_query,
    HEADS: tl.constexpr, QUERIES: tl.constexpr, VALUE: tl.constexpr, VALUES: tl.constexpr,
    CHUNK: tl.constexpr, WINDOW: tl.constexpr, TOGETHER: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Combine the splits of one lane; only those visible to its query were written, and only those are read."""
    if EARLY:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    row = (tl.program_id(0) // groups).to(tl.int64)
    group, lane = tl.program_id(0) % groups, tl.program_id(1)
    query, head = lane // HEADS, group * HEADS + lane % HEADS
    value = tl.arange(0, VALUES)
    index = tl.load(INDEX + row * i_row + query * i_query).to(tl.int32)
    last = tl.minimum(index // CHUNK, splits - 1)
    start = 0
    if WINDOW:
        start = tl.maximum(index - window + 1, 0) // CHUNK
    peak = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    mean = tl.zeros((VALUES,), tl.float32)
    for first in range(start, last + 1, TOGETHER):
        split = first + tl.arange(0, TOGETHER)
        there = split <= last
        at = (tl.program_id(0).to(tl.int64) * splits + split) * HEADS * QUERIES + lane
        peaks = tl.load(PEAKS + at, mask=there, other=float("-inf"))
        sums = tl.load(SUMS + at, mask=there, other=0.0)
        held = MEANS + at[:, None] * VALUE + value[None, :]
        means = tl.load(held, mask=there[:, None] & (value < VALUE)[None, :], other=0.0)
        higher = tl.maximum(peak, tl.max(peaks, 0))
        fade, share = tl.exp2(peak - higher), tl.exp2(peaks - higher)
        total = total * fade + tl.sum(sums * share, 0)
        mean = mean * fade + tl.sum(means * share[:, None], 0)
        peak = higher
    out = OUT + row * o_row + query * o_query + head * o_head + value
    tl.store(out, (mean / total).to(OUT.dtype.element_ty), mask=value < VALUE)

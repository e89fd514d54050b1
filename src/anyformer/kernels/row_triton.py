"""Triton kernel of row.py; imported only where it runs."""

from __future__ import annotations

from anyformer.kernels.triton import cuda, jit, tl


@jit
def apply_activation(x, ACT: tl.constexpr):
    """relu, gelu, its tanh form, silu; 0 is none."""
    if ACT == 1:
        x = tl.maximum(x, 0.0)
    if ACT == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACT == 3:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))  # x (1 + tanh(inner)) / 2
    if ACT == 4:
        x = x / (1.0 + tl.exp(-x))
    return x


@jit
def map_row(
    X, W, BIAS, GAIN, SHIFT, ADDED, OUT, eps, outs, w_row,
    WIDTH: tl.constexpr, TURNS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    NORM: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """ROWS weight rows times one input row of WIDTH channels, BLOCK channels per turn; with a norm, TURNS is 1."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < outs
    block = tl.arange(0, BLOCK)
    inside = block < WIDTH
    weights = W + row.to(tl.int64)[:, None] * w_row + block[None, :]
    # Weights do not depend on the preceding kernel: load them from global memory while it finishes.
    w = tl.load(weights, mask=there[:, None] & inside[None, :], other=0.0)
    if BIAS is not None:
        bias = tl.load(BIAS + row, mask=there, other=0.0).to(tl.float32)
    if GAIN is not None:
        gain = tl.load(GAIN + block, mask=inside, other=0.0).to(tl.float32)
    if SHIFT is not None:
        shift = tl.load(SHIFT + block, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    out = row
    if GATED:  # rows 2i and 2i + 1 are the gate and the value of one channel
        out = tl.program_id(0) * (ROWS // 2) + tl.arange(0, ROWS // 2)
    kept = out < (outs // 2 if GATED else outs)
    x = tl.load(X + block, mask=inside, other=0.0).to(tl.float32)
    if ADDED is not None:
        added = tl.load(ADDED + out, mask=kept, other=0.0).to(tl.float32)
    if NORM > 0:
        if NORM == 2:
            x = tl.where(inside, x - tl.sum(x, 0) / WIDTH, 0.0)
        x = x * (1.0 / tl.sqrt(tl.sum(x * x, 0) / WIDTH + eps))
        if GAIN is not None:
            x = x * gain
        if SHIFT is not None:
            x = x + shift
    sums = w.to(tl.float32) * x[None, :]
    for turn in tl.static_range(1, TURNS):
        channel = turn * BLOCK + block
        w = tl.load(weights + turn * BLOCK, mask=there[:, None] & (channel < WIDTH)[None, :], other=0.0)
        x = tl.load(X + channel, mask=channel < WIDTH, other=0.0).to(tl.float32)
        sums += w.to(tl.float32) * x[None, :]
    y = tl.sum(sums, 1)  # (ROWS,)
    if BIAS is not None:
        y = y + bias
    if GATED:
        gate, value = tl.split(tl.reshape(y, (ROWS // 2, 2)))
        y = apply_activation(gate, ACT) * value
    else:
        y = apply_activation(y, ACT)
    if ADDED is not None:
        y = y + added
    tl.store(OUT + out, y.to(OUT.dtype.element_ty), mask=kept)

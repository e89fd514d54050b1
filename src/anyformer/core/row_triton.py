"""The kernel behind row_kernel.py, in Triton; imported only where it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

triton: Any = None
tl: Any = None
cuda: Any = None
try:
    import triton  # type: ignore[no-redef, import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[no-redef, import-not-found, unused-ignore]
    from triton.language.extra import cuda  # type: ignore[no-redef, import-not-found, unused-ignore]
except ModuleNotFoundError:  # there is nothing to run them on; they can still be read
    pass


def jit(kernel: Callable[..., Any]) -> Any:
    """As Triton's own, where it is."""
    return kernel if triton is None else triton.jit(kernel)


@jit
def activated(x, ACT: tl.constexpr):
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
    """ROWS rows of the weights times one normalised row of WIDTH channels, BLOCK of them in each of TURNS turns."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < outs
    block = tl.arange(0, BLOCK)
    weights = W + row.to(tl.int64)[:, None] * w_row + block[None, :]
    # The weights depend on nothing that runs before: their first block is on its way while that ends.
    ahead = tl.load(weights, mask=there[:, None] & (block < WIDTH)[None, :], other=0.0)
    if EARLY:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
    mean = 0.0
    factor = 1.0
    if NORM > 0:
        total = tl.zeros((BLOCK,), tl.float32)
        for turn in tl.static_range(TURNS):
            channel = turn * BLOCK + block
            total += tl.load(X + channel, mask=channel < WIDTH, other=0.0).to(tl.float32)
        if NORM == 2:
            mean = tl.sum(total, 0) / WIDTH
        squares = tl.zeros((BLOCK,), tl.float32)
        for turn in tl.static_range(TURNS):
            channel = turn * BLOCK + block
            x = tl.load(X + channel, mask=channel < WIDTH, other=0.0).to(tl.float32)
            x = tl.where(channel < WIDTH, x - mean, 0.0)
            squares += x * x
        factor = 1.0 / tl.sqrt(tl.sum(squares, 0) / WIDTH + eps)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for turn in tl.static_range(TURNS):
        channel = turn * BLOCK + block
        inside = channel < WIDTH
        x = tl.load(X + channel, mask=inside, other=0.0).to(tl.float32)
        if NORM > 0:
            x = (x - mean) * factor
            if GAIN is not None:
                x = x * tl.load(GAIN + channel, mask=inside, other=0.0).to(tl.float32)
            if SHIFT is not None:
                x = x + tl.load(SHIFT + channel, mask=inside, other=0.0).to(tl.float32)
        w = ahead
        if turn > 0:
            w = tl.load(weights + turn * BLOCK, mask=there[:, None] & inside[None, :], other=0.0)
        sums += w.to(tl.float32) * x[None, :]
    y = tl.sum(sums, 1)  # (ROWS,)
    if BIAS is not None:
        y = y + tl.load(BIAS + row, mask=there, other=0.0).to(tl.float32)
    if GATED:  # rows 2i and 2i + 1 are the gate and the value of one channel
        gate, value = tl.split(tl.reshape(y, (ROWS // 2, 2)))
        y = activated(gate, ACT) * value
        row = tl.program_id(0) * (ROWS // 2) + tl.arange(0, ROWS // 2)
        there = row < outs // 2
    else:
        y = activated(y, ACT)
    if ADDED is not None:
        y = y + tl.load(ADDED + row, mask=there, other=0.0).to(tl.float32)
    tl.store(OUT + row, y.to(OUT.dtype.element_ty), mask=there)

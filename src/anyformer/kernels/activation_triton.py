"""Triton kernels of activation.py; imported only where they run."""

from __future__ import annotations

from anyformer.kernels.triton import jit, tl


@jit
def act_parts(x, ACT: tl.constexpr):
    """The factor f(x) in act(x) = x f(x), and the derivative of act."""
    if ACT == "silu":
        share = tl.sigmoid(x)
        slope = share * (1.0 - share)
    elif ACT == "gelu_tanh":
        twice = 1.5957691216057308  # 2 sqrt(2 / pi)
        # 0.5 (1 + tanh u) = sigmoid(2u): one exponential instead of a tanh.
        share = tl.sigmoid(twice * (x + 0.044715 * x * x * x))
        slope = share * (1.0 - share) * twice * (1.0 + 0.134145 * x * x)
    else:  # gelu
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        slope = 0.3989422804014327 * tl.exp(-0.5 * x * x)  # the normal density
    return share, share + x * slope


@jit
def act_forward(X, Y, count, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Y = act(X), elementwise."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    share, _ = act_parts(x, ACT)
    tl.store(Y + at, (x * share).to(Y.dtype.element_ty), mask=inside)


@jit
def act_backward(
    GRAD, X, D_X, SUMS, rows, columns, ACT: tl.constexpr, STRIP: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """D_X (N,I) = GRAD * act'(X), and its column sums over each strip of STRIP rows: SUMS (strips, I)."""
    strip = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)  # reduced over its rows once, at the end
    for start in range(0, STRIP, ROWS):
        row = strip * STRIP + start + tl.arange(0, ROWS)
        at = row[:, None] * columns + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(GRAD + at, mask=inside, other=0.0).to(tl.float32)
        _, slope = act_parts(x, ACT)
        d_x = grad * slope
        tl.store(D_X + at, d_x.to(D_X.dtype.element_ty), mask=inside)
        total += d_x
    tl.store(SUMS + strip * columns + column, tl.sum(total, 0), mask=column < columns)


@jit
def gate_forward(X, Y, count, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Y (count,) = act(gate) * value from interleaved (gate, value) pairs in X, loaded contiguously."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    pair = 2 * first + tl.arange(0, 2 * BLOCK)
    x = tl.load(X + pair, mask=pair < 2 * count, other=0.0).to(tl.float32)
    gate, value = tl.split(tl.reshape(x, (BLOCK, 2)))
    share, _ = act_parts(gate, ACT)
    at = first + tl.arange(0, BLOCK)
    tl.store(Y + at, (gate * share * value).to(Y.dtype.element_ty), mask=at < count)


@jit
def gate_backward(GRAD, X, D_X, count, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Gradients of gate and value, interleaved as in X."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    pair = 2 * first + tl.arange(0, 2 * BLOCK)
    x = tl.load(X + pair, mask=pair < 2 * count, other=0.0).to(tl.float32)
    gate, value = tl.split(tl.reshape(x, (BLOCK, 2)))
    at = first + tl.arange(0, BLOCK)
    grad = tl.load(GRAD + at, mask=at < count, other=0.0).to(tl.float32)
    share, slope = act_parts(gate, ACT)
    both = tl.reshape(tl.join(grad * value * slope, grad * gate * share), (2 * BLOCK,))
    tl.store(D_X + pair, both.to(D_X.dtype.element_ty), mask=pair < 2 * count)

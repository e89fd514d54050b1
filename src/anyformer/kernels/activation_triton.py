"""The kernels behind activation.py, in Triton; imported only where they run."""

from __future__ import annotations

from anyformer.kernels.triton import jit, tl


@jit
def gelu_parts(x, TANH: tl.constexpr):
    """The factor Phi(x) of x in GELU, and the derivative of x Phi(x)."""
    if TANH:
        twice = 1.5957691216057308  # 2 sqrt(2 / pi)
        # 0.5 (1 + tanh u) is the logistic function of 2u: one exponential in place of a tanh.
        share = tl.sigmoid(twice * (x + 0.044715 * x * x * x))
        slope = share * (1.0 - share) * twice * (1.0 + 0.134145 * x * x)
    else:
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        slope = 0.3989422804014327 * tl.exp(-0.5 * x * x)  # the normal density
    return share, share + x * slope


@jit
def gelu_forward(X, Y, count, TANH: tl.constexpr, BLOCK: tl.constexpr):
    """Y = GELU(X), entry by entry."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
    share, _ = gelu_parts(x, TANH)
    tl.store(Y + at, (x * share).to(Y.dtype.element_ty), mask=inside)


@jit
def gelu_backward(
    GRAD, X, D_X, SUMS, rows, columns, TANH: tl.constexpr, STRIP: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """D_X (N,I) = GRAD * GELU'(X), and the sums of its columns over each strip of STRIP rows: SUMS (strips, I)."""
    strip = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)  # summed over its rows once, at the end
    for start in range(0, STRIP, ROWS):
        row = strip * STRIP + start + tl.arange(0, ROWS)
        at = row[:, None] * columns + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        x = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(GRAD + at, mask=inside, other=0.0).to(tl.float32)
        _, slope = gelu_parts(x, TANH)
        d_x = grad * slope
        tl.store(D_X + at, d_x.to(D_X.dtype.element_ty), mask=inside)
        total += d_x
    tl.store(SUMS + strip * columns + column, tl.sum(total, 0), mask=column < columns)

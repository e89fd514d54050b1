"""Triton kernel of adamw.py; imported only where it runs."""

from __future__ import annotations

from anyformer.kernels.triton import jit, tl


@jit
def one_minus_exp(x):
    """1 - exp(x) for x < 0, by a series near 0, where the difference would lose most of its digits."""
    series = -x * (1.0 + x * (1.0 / 2.0 + x * (1.0 / 6.0 + x * (1.0 / 24.0))))
    return tl.where(x > -0.03, series, 1.0 - tl.exp(x))


@jit
def aligned(PLACE, kind: tl.constexpr):
    """The pointer stored at an address, marked as 16-byte aligned."""
    return tl.multiple_of(tl.load(PLACE).to(kind), 16)


@jit
def adamw_update(
    POINTERS, BLOCKS, CLIP, LR, BAD, decay, beta1, beta2, log_beta1, log_beta2, eps, NARROW: tl.constexpr,
    FIELDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """AdamW on one block of one of many tensors.

    POINTERS (tensors, FIELDS) has the addresses and sizes of `Field` in adamw.py, BLOCKS (programs, 2) the tensor and
    the block within it.
    """
    which = tl.load(BLOCKS + 2 * tl.program_id(0))
    at = tl.load(BLOCKS + 2 * tl.program_id(0) + 1) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    row = POINTERS + which * FIELDS
    single = tl.pointer_type(tl.float32)
    grad_type = tl.pointer_type(tl.bfloat16) if NARROW else single
    # Triton cannot infer the alignment of addresses loaded from memory; marked as multiples of 16, loads vectorise.
    master, grad = aligned(row, single), aligned(row + 1, grad_type)
    mean, square, steps = aligned(row + 2, single), aligned(row + 3, single), tl.load(row + 4).to(single)
    if tl.load(BAD) == 0.0:
        inside = at < tl.load(row + 5)
        lr = tl.load(LR)
        step = tl.load(steps)
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32) * tl.load(CLIP)
        w = tl.load(master + at, mask=inside, other=0.0) * (1.0 - lr * decay)
        m = tl.load(mean + at, mask=inside, other=0.0)
        v = tl.load(square + at, mask=inside, other=0.0)
        m = m + (1.0 - beta1) * (g - m)
        v = v + (1.0 - beta2) * (g * g - v)
        deviation = tl.sqrt(v / one_minus_exp(step * log_beta2)) + eps  # 1 - beta2 ** step
        w -= lr / one_minus_exp(step * log_beta1) * m / deviation
        tl.store(mean + at, m, mask=inside)
        tl.store(square + at, v, mask=inside)
        tl.store(master + at, w, mask=inside)
        if NARROW:
            narrow = aligned(row + 6, grad_type)
            tl.store(narrow + at, w.to(tl.bfloat16), mask=inside)

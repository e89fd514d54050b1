"""Triton kernel of linear_loss.py; imported only where it runs."""

from __future__ import annotations

from anyformer.kernels.triton import jit, tl


@jit
def logits_to_gradients(
    LOGITS, TARGETS, LOSSES, SCALE, smoothing, vocab, padded, IGNORED: tl.constexpr, SMOOTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Overwrite one row of logits (V,) with the gradient of its cross-entropy times SCALE, and store the loss.

    Rows are `padded` columns apart; columns beyond the vocabulary become 0.

    Two passes over the row: the first finds the maximum and the sum of exponentials, the second writes. The second
    reads from the L2 cache; both are bound by their one exponential per element.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(TARGETS + row)
    logits = LOGITS + row * padded
    block = tl.arange(0, BLOCK)
    log2_e = 1.4426950408889634  # the hardware has exp2
    if target == IGNORED:
        tl.store(LOSSES + row, 0.0)
        for start in range(0, padded, BLOCK):
            tl.store(logits + start + block, tl.zeros((BLOCK,), LOGITS.dtype.element_ty), mask=start + block < padded)
    else:
        top = float("-inf")
        sums = tl.zeros((BLOCK,), tl.float32)
        plain = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab, BLOCK):
            inside = start + block < vocab
            x = tl.load(logits + start + block, mask=inside, other=float("-inf")).to(tl.float32) * log2_e
            higher = tl.maximum(top, tl.max(x, 0))
            sums = sums * tl.exp2(top - higher) + tl.exp2(x - higher)
            top = higher
            if SMOOTH:
                plain += tl.where(inside, x, 0.0)
        log2_sum = top + tl.log2(tl.sum(sums, 0))
        loss = log2_sum - (1.0 - smoothing) * tl.load(logits + target).to(tl.float32) * log2_e
        if SMOOTH:
            loss -= smoothing * (tl.sum(plain, 0) / vocab)
        tl.store(LOSSES + row, loss / log2_e)
        scale = tl.load(SCALE)
        for start in range(0, padded, BLOCK):
            column = start + block
            inside = column < vocab
            x = tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
            share = tl.exp2(x * log2_e - log2_sum) - tl.where(column == target, 1.0 - smoothing, 0.0)
            if SMOOTH:
                share -= smoothing / vocab
            share = tl.where(inside, share * scale, 0.0)
            tl.store(logits + column, share.to(LOGITS.dtype.element_ty), mask=column < padded)

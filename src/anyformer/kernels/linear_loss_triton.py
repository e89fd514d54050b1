"""The kernel behind linear_loss.py, in Triton; imported only where it runs."""

from __future__ import annotations

from anyformer.kernels.triton import jit, tl


@jit
def logits_to_gradients(
    LOGITS, TARGETS, LOSSES, SCALE, smoothing, vocab, row_stride, IGNORED: tl.constexpr, BLOCK: tl.constexpr
):
    """One row of logits (V,) becomes, in place, the gradient of its cross-entropy times SCALE; the loss is written.

    Two passes over the row: the first finds the maximum and the sum of exponentials, the second writes.
    """
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(TARGETS + row)
    logits = LOGITS + row * row_stride
    block = tl.arange(0, BLOCK)
    if target == IGNORED:
        tl.store(LOSSES + row, 0.0)
        for start in range(0, vocab, BLOCK):
            tl.store(logits + start + block, tl.zeros((BLOCK,), LOGITS.dtype.element_ty), mask=start + block < vocab)
    else:
        largest = tl.full((BLOCK,), float("-inf"), tl.float32)
        sums = tl.zeros((BLOCK,), tl.float32)
        plain = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, vocab, BLOCK):
            inside = start + block < vocab
            x = tl.load(logits + start + block, mask=inside, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(largest, x)
            # A lane that has seen nothing yet has -inf on both sides, whose difference is no number.
            moved = tl.where(higher == float("-inf"), 0.0, tl.exp(largest - higher))
            sums = sums * moved + tl.where(inside, tl.exp(x - higher), 0.0)
            largest = higher
            plain += tl.where(inside, x, 0.0)
        top = tl.max(largest, 0)
        total = tl.sum(tl.where(largest == float("-inf"), 0.0, sums * tl.exp(largest - top)), 0)
        log_sum = top + tl.log(total)
        wanted = tl.load(logits + target).to(tl.float32)
        mean = tl.sum(plain, 0) / vocab
        tl.store(LOSSES + row, log_sum - (1.0 - smoothing) * wanted - smoothing * mean)
        scale = tl.load(SCALE)
        for start in range(0, vocab, BLOCK):
            column = start + block
            inside = column < vocab
            x = tl.load(logits + column, mask=inside, other=float("-inf")).to(tl.float32)
            share = tl.exp(x - log_sum) - tl.where(column == target, 1.0 - smoothing, 0.0) - smoothing / vocab
            tl.store(logits + column, (share * scale).to(LOGITS.dtype.element_ty), mask=inside)

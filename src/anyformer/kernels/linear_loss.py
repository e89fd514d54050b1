"""Fused linear layer and cross-entropy on a GPU: one custom op that holds a single chunk of logits.

The reference is core/loss.py. A chunk of logits is computed, turned into its gradient in place by a Triton kernel, and
multiplied into the gradients of hidden states and weights before the next chunk: the logits are read twice and never
stored in fp32. `enable` uses it only where it agrees with the reference on a small sample.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import loss as reference
from anyformer.core.loss import IGNORED
from anyformer.kernels.trying import agrees

CHUNK = 2**29  # logits in memory at once: 1 GiB in bf16
ALIGNED = 64  # weight rows are padded to a multiple of this
BLOCK, WARPS = 8192, 8
CLOSE = 2e-2  # relative tolerance of bf16 products summed in another order


@torch.library.custom_op("anyformer::linear_loss", mutates_args=())
def linear_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, wants_weight: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean loss of hidden states (N,D) in the compute dtype, and its gradients (N,D), (V,D), (V,)."""
    from anyformer.kernels.linear_loss_triton import logits_to_gradients

    vocab, count = weight.shape[0], len(targets)
    padded = -(-vocab // ALIGNED) * ALIGNED  # matmuls of unaligned sizes take up to three times as long
    chunks = -(-count * padded // CHUNK)
    rows = max(1, -(-count // max(1, chunks)))  # equal chunks: a small last one would be a slow matmul
    narrow = pad_rows(weight, padded, hidden.dtype)
    narrow_bias = None if bias is None else pad_rows(bias, padded, hidden.dtype)
    scale = 1.0 / (targets != IGNORED).sum().clamp(min=1).float()
    losses = torch.empty(count, device=hidden.device)
    d_hidden = torch.empty_like(hidden)
    d_weight = torch.zeros((padded, weight.shape[1]) if wants_weight else (0,), device=hidden.device)
    d_bias = torch.zeros(0 if bias is None else padded, device=hidden.device)
    for start in range(0, count, rows):
        part = slice(start, start + rows)
        logits = F.linear(hidden[part], narrow, narrow_bias)  # (n,V)
        logits_to_gradients[(len(logits),)](
            logits, targets[part], losses[part], scale, smoothing, vocab, padded,
            IGNORED=IGNORED, SMOOTH=smoothing != 0.0, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
        torch.mm(logits, narrow, out=d_hidden[part])
        if wants_weight:
            add_product(d_weight, logits.T, hidden[part])
        if bias is not None:
            d_bias += logits.sum(0, dtype=torch.float32)
    return losses.sum() * scale, d_hidden, d_weight[:vocab], d_bias[:vocab]


def pad_rows(values: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Values cast to `dtype` and zero-padded to `rows` rows."""
    if len(values) == rows:
        return values.to(dtype)
    found = values.new_zeros(rows, *values.shape[1:], dtype=dtype)
    found[: len(values)] = values
    return found


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b with fp32 output for any dtype of a and b, without a separate pass over `total`."""
    if a.dtype == torch.float32:
        total.addmm_(a, b)
    else:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)


@linear_loss.register_fake
def shapes(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, wants_weight: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Uninitialised results (fake tensors)."""
    sizes = [(), weight.shape if wants_weight else (0,), (0,) if bias is None else bias.shape]
    loss, d_weight, d_bias = (hidden.new_empty(size, dtype=torch.float32) for size in sizes)
    return loss, torch.empty_like(hidden), d_weight, d_bias


def keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """Save the gradients, which the forward pass has computed."""
    _, weight, bias, _, _, wants_weight = inputs
    ctx.save_for_backward(*output[1:])
    ctx.dtypes = (weight.dtype if wants_weight else None, None if bias is None else bias.dtype)


def scale_gradients(ctx: Any, grad: Tensor, *rest: Tensor | None) -> tuple[Tensor | None, ...]:
    d_hidden, d_weight, d_bias = ctx.saved_tensors
    of_weight, of_bias = ctx.dtypes
    return (
        d_hidden * grad.to(d_hidden.dtype), None if of_weight is None else (d_weight * grad).to(of_weight),
        None if of_bias is None else (d_bias * grad).to(of_bias), None, None, None,
    )  # fmt: skip


linear_loss.register_autograd(scale_gradients, setup_context=keep_gradients)


def fused_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None, smoothing: float
) -> Tensor:
    """`core.loss.linear_cross_entropy` of flat hidden states (N,D), in the autocast dtype."""
    if torch.is_autocast_enabled("cuda"):
        hidden = hidden.to(torch.get_autocast_dtype("cuda"))
    found: Tensor = linear_loss(hidden, weight, bias, targets, smoothing, weight.requires_grad)[0]
    return found


@cache
def enable(device: torch.device) -> bool:
    """Use the fused loss from now on, if its loss and gradients agree with the reference on this device."""
    if not agrees(device, "the loss", lambda: compare(device), CLOSE):
        return False
    reference.fused = fused_cross_entropy
    return True


@torch.enable_grad()
def compare(device: torch.device) -> float:
    """Largest relative error of loss and gradients against the reference on a small sample."""
    draw = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(96, 64, device=device, generator=draw).bfloat16()
    weight = torch.randn(1000, 64, device=device, generator=draw) / 8
    targets = torch.randint(0, 1000, (96,), device=device, generator=draw)
    targets[::7] = IGNORED
    found = []
    for fused in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16):
            if fused:
                loss = fused_cross_entropy(h, w, targets, None, 0.1)
            else:
                loss = reference.ChunkedLoss.apply(h, w, None, targets, None, 0.1)
        loss.backward()
        assert h.grad is not None and w.grad is not None
        found.append([loss.detach().float(), h.grad.float(), w.grad.float()])
    return max(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(*found, strict=True))

"""Fused linear layer and cross-entropy: the full logits tensor is never materialised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.kernels.onednn import linear, sum_of_outer

IGNORED = -100  # target ignored by the loss, as torch's ignore_index
CHUNK = 2**22  # logits held at once
Fused = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]  # hidden, weight, targets, bias, smoothing
fused: Fused | None = None  # the GPU operation, set once kernels/linear_loss.py has been checked against this one


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, bias: Tensor | None = None, soft_cap: float | None = None,
    smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Mean of cross_entropy(hidden @ weight.T + bias, targets) over targets that are not -100.

    Tokens are processed in chunks and their gradients computed in the forward pass: peak memory is one chunk of logits.
    """
    flat, wanted = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    if flat.shape[0] != wanted.shape[0]:
        raise ValueError(
            f"{tuple(hidden.shape)} hidden states do not fit {tuple(targets.shape)} targets, expected (B,T,D) and (B,T)"
        )
    if fused is not None and flat.is_cuda and soft_cap is None and flat.dtype != torch.float64:
        return fused(flat, weight, wanted, bias, smoothing)
    return ChunkedLoss.apply(flat, weight, bias, wanted, soft_cap, smoothing)


class ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        soft_cap: float | None,
        smoothing: float,
    ) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        wants = ctx.needs_input_grad[:3]
        counted = (targets != IGNORED).sum().clamp(min=1)
        total = torch.zeros((), dtype=exact, device=hidden.device)
        d_hidden = torch.empty_like(hidden) if wants[0] else None
        d_weight = torch.zeros_like(weight, dtype=exact) if wants[1] else None
        d_bias = torch.zeros_like(bias, dtype=exact) if bias is not None and wants[2] else None
        rows = max(1, CHUNK // weight.shape[0])
        for h, t, at in zip(hidden.split(rows), targets.split(rows), range(0, hidden.shape[0], rows), strict=True):
            raw = linear(h, weight, bias).to(exact)  # (n,V)
            logits = raw if soft_cap is None else soft_cap * torch.tanh(raw / soft_cap)
            total += F.cross_entropy(logits, t, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
            if not any(wants):
                continue
            grad = logits.softmax(-1)
            real = t != IGNORED
            at_target = torch.where(real, t, 0)[:, None]
            grad.scatter_add_(1, at_target, grad.new_full(at_target.shape, -(1 - smoothing)))
            if smoothing:
                grad -= smoothing / weight.shape[0]
            grad *= (real.to(exact) / counted)[:, None]  # bool / int alone would be float32
            if soft_cap is not None:
                grad *= 1 - (logits / soft_cap).square()
            narrow = grad.to(hidden.dtype)
            if d_hidden is not None:
                d_hidden[at : at + h.shape[0]] = linear(narrow, weight.mT)
            if d_weight is not None:
                d_weight += sum_of_outer(narrow, h).to(exact)
            if d_bias is not None:
                d_bias += grad.sum(0)
        ctx.save_for_backward(d_hidden, None if d_weight is None else d_weight.to(weight.dtype),
                              None if d_bias is None or bias is None else d_bias.to(bias.dtype))  # fmt: skip
        return total / counted

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        scaled = [None if part is None else part * grad.to(part.dtype) for part in ctx.saved_tensors]
        return (*scaled, None, None, None)

"""Optimal transport cost between two sets of vectors (IPOT, 1802.04307)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine_cost(first: Tensor, second: Tensor) -> Tensor:
    """1 - cos of every pair of vectors (B,T,D) and (B,N,D), (B,T,N), without autocast: rounding would spoil a plan
    found in many small steps."""
    with torch.autocast(first.device.type, enabled=False):
        return 1 - F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).mT


@torch.no_grad()
def transport_plan(cost: Tensor, first: Tensor, second: Tensor, *, steps: int = 150, step_size: float = 0.3) -> Tensor:
    """The transport plan (B,T,N) of least cost with uniform marginals over the real rows and columns, given by the
    masks `first` (B,T) and `second` (B,N).

    The inexact proximal point method: each step solves a problem regularised towards the last plan, by one Sinkhorn
    iteration. Unlike Sinkhorn's algorithm, it converges to the exact optimum.
    """
    there = (first[:, :, None] & second[:, None, :]).to(cost.dtype)  # (B,T,N)
    rows = first / first.sum(1, keepdim=True).clamp(min=1)  # (B,T) the marginals
    columns = second / second.sum(1, keepdim=True).clamp(min=1)  # (B,N)
    kernel = (-cost / step_size).exp() * there
    plan, scale = there, columns.to(cost.dtype)
    for _ in range(steps):
        moved = kernel * plan
        row_scale = divide(rows, (moved * scale[:, None, :]).sum(2))
        scale = divide(columns, (moved * row_scale[:, :, None]).sum(1))
        plan = row_scale[:, :, None] * moved * scale[:, None, :]
    return plan


def divide(shares: Tensor, sums: Tensor) -> Tensor:
    """Shares divided by sums, 0 where the share is 0."""
    return torch.where(shares > 0, shares / sums.clamp(min=torch.finfo(sums.dtype).tiny), 0.0).to(sums.dtype)


def transport_cost(first: Tensor, second: Tensor, first_mask: Tensor, second_mask: Tensor) -> Tensor:
    """The least cost of transporting vectors (B,T,D) to (B,N,D), (B,); gradients flow through the costs, not the
    plan (1909.11740)."""
    cost = cosine_cost(first, second)
    return (transport_plan(cost.detach(), first_mask, second_mask) * cost).sum((1, 2))

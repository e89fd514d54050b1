"""Optimal transport between two sets of vectors: what it costs to carry one over to the other (IPOT, 1802.04307)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine_cost(first: Tensor, second: Tensor) -> Tensor:
    """1 - cos of every pair of vectors (B,T,D) and (B,N,D), (B,T,N), in the precision they have: a plan found by many
    small steps would be rounded away under autocast."""
    with torch.autocast(first.device.type, enabled=False):
        return 1 - F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).mT


@torch.no_grad()
def transport_plan(cost: Tensor, first: Tensor, second: Tensor, *, steps: int = 150, step_size: float = 0.3) -> Tensor:
    """How much of each row goes to each column (B,T,N) so that the whole costs least; every row and every column that
    is there has the same share of 1. `first` (B,T) and `second` (B,N) say which are there.

    The inexact proximal point method: each step solves a problem whose solution may not move far from the last plan, by
    one round of Sinkhorn's scaling. Unlike Sinkhorn's own, it comes as near to the exact optimum as one has steps.
    """
    there = (first[:, :, None] & second[:, None, :]).to(cost.dtype)  # (B,T,N)
    rows = first / first.sum(1, keepdim=True).clamp(min=1)  # (B,T) the share of each
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
    """Shares by sums, 0 where nothing is there."""
    return torch.where(shares > 0, shares / sums.clamp(min=torch.finfo(sums.dtype).tiny), 0.0).to(sums.dtype)


def transport_cost(first: Tensor, second: Tensor, first_mask: Tensor, second_mask: Tensor) -> Tensor:
    """What carrying vectors (B,T,D) over to (B,N,D) costs at least, (B,); gradients pass through the costs, not the
    plan (1909.11740)."""
    cost = cosine_cost(first, second)
    return (transport_plan(cost.detach(), first_mask, second_mask) * cost).sum((1, 2))

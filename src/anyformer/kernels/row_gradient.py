"""Embedding lookup in a small table with a fast deterministic gradient: a matmul instead of a sorted scatter."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MOST_ROWS = 1024  # of a table; beyond that the matmul costs as much as it saves


def wanted(rows: Tensor) -> bool:
    """Whether to compute the gradient of these rows by a matmul."""
    asked = torch.are_deterministic_algorithms_enabled() and rows.device.type == "cuda"
    return asked and rows.shape[0] <= MOST_ROWS and rows.requires_grad and torch.is_grad_enabled()


class RowsOfTable(torch.autograd.Function):
    """rows[ids]. Torch's deterministic gradient adds the tokens of a row one by one: slow for few rows."""

    @staticmethod
    def forward(ids: Tensor, rows: Tensor) -> Tensor:
        return F.embedding(ids, rows)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ids, rows = inputs
        ctx.save_for_backward(ids)
        ctx.count = rows.shape[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (ids,), (grad,) = ctx.saved_tensors, grads
        which = ids.flatten()[:, None] == torch.arange(ctx.count, device=ids.device)  # (N,V)
        return None, which.to(grad.dtype).T @ grad.flatten(0, -2)

"""Shared code of claims that train: a plain, seeded training loop, on a GPU if available."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


def lab_device(full: bool) -> torch.device:
    """The CPU for the small form; for the full form a GPU if available."""
    return torch.device("cuda" if full and torch.cuda.is_available() else "cpu")


def fit(
    net: nn.Module,
    loss_of: Callable[[torch.Generator], Tensor],
    *,
    steps: int,
    seed: int,
    lr: float = 3e-3,
    warmup: int = 0,
    decay: bool = True,
    weight_decay: float = 0.01,
    grad_clip: float | None = 1.0,
) -> list[float]:
    """Train `net` with AdamW, linear warm-up and cosine decay to 0; returns the loss of every step.

    `loss_of(generator)` draws a batch from the generator, which lives on the CPU so that a GPU sees the same data, and
    gives its mean loss. A loss that is no longer finite ends the training: the rest of the curve is infinite.
    """
    generator = torch.Generator().manual_seed(1000 + seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=weight_decay)

    def scale(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * done)) if decay else 1.0

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, scale)
    curve: list[float] = []
    net.train()
    for _ in range(steps):
        loss = loss_of(generator)
        curve.append(loss.item())
        if not math.isfinite(curve[-1]):
            curve[-1:] = [math.inf] * (steps - len(curve) + 1)
            break
        optimizer.zero_grad()
        loss.backward()
        if grad_clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), grad_clip)
        optimizer.step()
        schedule.step()
    net.eval()
    return curve

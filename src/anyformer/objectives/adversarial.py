"""Losses of two nets against each other: the hinge of 1705.02894, as SAGAN takes it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """mean max(0, 1 - D(real)) + mean max(0, 1 + D(fake)): 2 where all scores are 0.

    >>> import torch
    >>> discriminator_loss(torch.zeros(3), torch.zeros(3)).item()
    2.0
    """
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def generator_loss(fake: Tensor) -> Tensor:
    """-mean D(fake): not cut off, so that the generator learns as long as it loses."""
    return -fake.mean()

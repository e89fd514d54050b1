"""Disable autocast for code that needs full precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """A context with autocast disabled on this device; a no-op on `meta`, which has no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)

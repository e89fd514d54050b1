"""Leaving autocast for a few lines that half precision would spoil."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """A context without autocast on this device; on `meta`, where there are shapes alone, autocast is not known."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)

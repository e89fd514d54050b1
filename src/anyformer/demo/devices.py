"""The device the demo runs on, in words."""

from __future__ import annotations

import torch


def described(device: torch.device) -> str:
    """What a person would call it.

    >>> described(torch.device("mps"))
    'mps'
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads != 1 else ''}" if device.type == "cpu" else device.type

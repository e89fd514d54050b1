"""Devices by name, as `--device` takes them."""

from __future__ import annotations

import torch

from anyformer.errors import UserError


def pick_device(name: str) -> torch.device:
    """A device by name; auto takes the first available accelerator."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(
            f"unknown device {name!r}", where="--device", fix="use auto, cpu, cuda, cuda:N or mps"
        ) from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type, False) or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        raise UserError(f"{name} is not there", where="--device", fix="use auto or cpu")
    return device

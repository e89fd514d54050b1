"""Which device the demo runs on."""

from __future__ import annotations

import re

import torch

from anyformer.errors import UserError


def pick(name: str) -> torch.device:
    """`auto` takes a GPU where there is one; anything else must exist here.

    >>> pick("cpu")
    device(type='cpu')
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:\d+)?", name):
        raise UserError(f"there is no device {name!r}", where="--device", fix="use auto, cpu, cuda, cuda:0 or mps")
    device = torch.device(name)
    if (device.type == "cuda" and not cuda) or (device.type == "mps" and not mps):
        raise UserError(f"torch finds no {device.type} device here", where="--device", fix="use --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"there are {torch.cuda.device_count()} CUDA devices here, numbered from 0",
            where="--device", fix="use --device cuda:0",
        )  # fmt: skip
    return device


def described(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads != 1 else ''}" if device.type == "cpu" else device.type

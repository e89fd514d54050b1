"""Kernels are enabled only where they run and agree with torch; otherwise one log line says why not."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from anyformer.kernels.triton import triton

log = logging.getLogger("anyformer")


def agrees(device: torch.device, what: str, compare: Callable[[], float], close: float) -> bool:
    """Whether a kernel runs on this device with a relative error of at most `close`; `what` is slower without it."""
    if device.type != "cuda" or triton is None:
        return False
    try:
        error = compare()
    except Exception as failure:  # a kernel compiler may raise anything; without the kernel things are only slower
        log.warning("%s is slower, its kernel does not run: %s", what, " ".join(str(failure).split())[:200])
        return False
    if not error <= close:
        log.warning("%s is slower, its kernel is off by %.1e", what, error)
    return error <= close

"""Deterministic algorithms: when a run uses them, and what they cost."""

from __future__ import annotations

import torch

from anyformer.training.settings import Training


def is_deterministic(settings: Training, device: torch.device, *, compiled: bool) -> bool:
    """Whether a run needs deterministic algorithms: if requested, and for compiled code on a CPU, which otherwise sums
    in
    the order in which threads finish."""
    return settings.deterministic or (compiled and device.type == "cpu")


def use_deterministic(on: bool) -> None:
    """Turn torch's deterministic algorithms on or off."""
    if torch.are_deterministic_algorithms_enabled() != on:  # the call imports torch's compiler, which takes a second
        torch.use_deterministic_algorithms(on)
    torch.utils.deterministic.fill_uninitialized_memory = not on  # type: ignore[attr-defined]


def explain_price(deterministic: float, free: float) -> str:
    """Log line on the cost of determinism, from the step times with and without it."""
    ways = f"{deterministic * 1e3:,.1f} ms a step, {free * 1e3:,.1f} without"
    return f"exact    deterministic algorithms: {ways}; {max(0.0, deterministic / free - 1):.0%} slower"

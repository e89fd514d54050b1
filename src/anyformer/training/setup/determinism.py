"""Deterministic algorithms: where a run uses them, and what they cost."""

from __future__ import annotations

import torch

from anyformer.training.settings import Training


def is_deterministic(settings: Training, device: torch.device, *, compiled: bool) -> bool:
    """Whether a run needs deterministic algorithms: where it was asked for, and on a CPU where it is compiled, since
    compiled code there adds up in the order in which threads come."""
    return settings.deterministic or (compiled and device.type == "cpu")


def use_deterministic(on: bool) -> None:
    """Have torch use deterministic algorithms, or leave it free."""
    if torch.are_deterministic_algorithms_enabled() != on:  # torch imports its compiler to say so: a second
        torch.use_deterministic_algorithms(on)
    torch.utils.deterministic.fill_uninitialized_memory = not on  # type: ignore[attr-defined]


def explain_price(deterministic: float, free: float) -> str:
    """What determinism costs, from the seconds of a step with it and without."""
    ways = f"{deterministic * 1e3:,.1f} ms a step, {free * 1e3:,.1f} without"
    return f"exact    deterministic algorithms: {ways}; {max(0.0, deterministic / free - 1):.0%} slower"

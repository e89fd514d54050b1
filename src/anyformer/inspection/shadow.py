"""A shadow: a second module tree with the same weights, for inspection without changing the original model.

Hooks, replaced forwards and reruns apply to the shadow. The model itself keeps its compiled code and its kernels.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def shadow(model: nn.Module, device: torch.device | None = None) -> nn.Module:
    """A copy of `model`'s modules in eval mode that shares every parameter and buffer; no weight is copied.

    With `device`, each tensor is copied there instead.
    """
    plain: Any = getattr(model, "_orig_mod", model)  # unwrap torch.compile
    parts = shared_parts(plain)
    if device is not None:
        parts = {key: moved(part, device) if isinstance(part, Tensor) else part for key, part in parts.items()}
    made: nn.Module = copy.deepcopy(plain, parts)
    for module in made.modules():
        for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            getattr(module, hooks).clear()
        module._compiled_call_impl = None  # a module compiled in place would run the original's code
    return made.eval()


def shared_parts(model: nn.Module) -> dict[int, Any]:
    """The deepcopy memo of objects that are shared, not copied: tensors wherever a module holds them, and specs."""
    shared: dict[int, Any] = {}

    def keep(value: Any) -> None:
        if isinstance(value, Tensor):
            shared[id(value)] = value
        elif isinstance(value, dict):
            for item in value.values():
                keep(item)
        elif isinstance(value, list | tuple):
            for item in value:
                keep(item)

    for module in model.modules():
        for name, value in vars(module).items():
            if name == "spec":
                shared[id(value)] = value
            elif name not in ("_modules", "_compiled_call_impl"):
                keep(value)
    return shared


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of the tensor on a device; a parameter stays a parameter."""
    there = tensor.detach().to(device, copy=True)
    return nn.Parameter(there, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else there

"""Building a network: shapes on `meta` first, then one allocation and one initialisation.

A part from outside the library is built directly on its device instead, so that the values its constructor sets are
kept; the schemes of `core/init.py` then fill only the library's own modules around it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from anyformer.core.init import Init, allocate, initialise
from anyformer.core.own_init import Starting
from anyformer.errors import UserError
from anyformer.spec import Spec, built_outside, comes_from_outside

META = torch.device("meta")


def materialise(
    spec: Spec, make: Callable[[], Any], init: Init, device: Any, dtype: torch.dtype | None, seed: int | None
) -> Any:
    """The network that `make` builds, with initialised weights; on `meta`, shapes only."""
    device = torch.get_default_device() if device is None else torch.device(device)
    if has_outside_parts(spec):
        module = build_for_real(make, device, seed)
        if dtype is not None:
            module = module.to(dtype)
        if device != META:
            initialise(module, init, seed, kept=modules_that_start_themselves(module))
        return module
    with META:
        module = make()
    if dtype is not None:
        module = module.to(dtype)
    if device != META:
        allocate(module, device)
        initialise(module, init, seed)
    return module


def with_memory(spec: Any, module: nn.Module, device: Any, dtype: torch.dtype | None) -> nn.Module:
    """Move a network built on `meta` to its device, uninitialised, for weights that will be copied into it."""
    return spec.build(device=device, dtype=dtype, seed=0) if has_outside_parts(spec) else allocate(module, device)


def check_buffers(spec: Any, model: nn.Module, where: object) -> None:
    """Reject a model with buffers that a fresh build would not reproduce: files hold parameters only."""
    held = dict(model.named_buffers())
    fresh = dict(spec.build(seed=0).named_buffers()) if held else {}
    for name, buffer in held.items():
        if name not in fresh or not torch.equal(buffer.cpu(), fresh[name].to(buffer.dtype).cpu()):
            raise UserError(f"{name} is a buffer that a new build would not reproduce, and buffers are not saved",
                            where=str(where), fix="make it a parameter with requires_grad=False")  # fmt: skip


def has_outside_parts(*specs: Spec) -> bool:
    """Whether any part is defined outside the library."""
    return any(comes_from_outside(type(part)) for spec in specs for _, part in spec.walk())


@contextlib.contextmanager
def trial(*specs: Spec | None) -> Iterator[None]:
    """Build parts only to check that they fit: on `meta`, where nothing is allocated and no random numbers are drawn.

    The module of a part from outside may compute with values it sets, which `meta` does not have; it is built on a CPU.
    """
    if has_outside_parts(*(spec for spec in specs if spec is not None)):
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            yield
    else:
        with META:
            yield


def build_for_real(make: Callable[[], Any], device: torch.device, seed: int | None) -> Any:
    """The network as its constructors leave it; a seed makes their random numbers repeatable."""
    if device == META:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            return make().to(device)
    if seed is None:
        with device:
            return make()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        return make()


def modules_that_start_themselves(module: nn.Module) -> set[int]:
    """Ids of the modules that keep the values their constructors set: those from outside, and torch's inside them.

    A library module nested in one of those is still filled by the init scheme.
    """
    found: set[int] = set()

    def visit(one: nn.Module, inside: bool) -> None:
        kinds = [kind for kind in type(one).__mro__ if kind is not Starting]
        if any(kind.__module__.partition(".")[0] == "anyformer" for kind in kinds):
            inside = False
        elif kinds[0].__module__.partition(".")[0] != "torch" or built_outside(one):
            inside = True
        if inside:
            found.add(id(one))
        for child in one.children():
            visit(child, inside)

    visit(module, inside=False)
    return found

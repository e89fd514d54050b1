"""Triton, where there is one: kernels can be read without it, and are imported only where they run."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from anyformer.kernels.compile_cache import use_private_cache

triton: Any = None
with contextlib.suppress(ModuleNotFoundError):  # there is nothing to run them on
    triton = importlib.import_module("triton")
    use_private_cache()
tl: Any = None if triton is None else importlib.import_module("triton.language")
cuda: Any = None if triton is None else importlib.import_module("triton.language.extra.cuda")


def jit(kernel: Callable[..., Any]) -> Any:
    """As Triton's own, where it is."""
    return kernel if triton is None else triton.jit(kernel)

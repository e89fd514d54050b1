"""Optional import of Triton: kernel files can be imported without it, and run only where it is installed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from anyformer.kernels.compile_cache import use_private_cache

triton: Any = None
with contextlib.suppress(ModuleNotFoundError):  # not installed: the kernels are never launched
    triton = importlib.import_module("triton")
    use_private_cache()
tl: Any = None if triton is None else importlib.import_module("triton.language")
cuda: Any = None if triton is None else importlib.import_module("triton.language.extra.cuda")


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit`, or the plain function without Triton."""
    return kernel if triton is None else triton.jit(kernel)

"""Linear layers for a few rows on a CPU by our own kernel, few_rows.cpp; torch's own if it cannot be compiled.

Decoding reads every weight for one token or a handful, so it is bound by memory bandwidth. Torch's matmul is tuned for
many rows: eight rows take three times as long as one, and int8 weights have to be dequantised first.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from anyformer.kernels.compile import load

log = logging.getLogger("anyformer")

SOURCES = ("few_rows.cpp", "layers.cpp")  # concatenated: the second uses the first
FEW = 24  # rows up to which our float32 kernel is faster than torch's
ready = False  # whether the library has been compiled and loaded
SMALL = 1 << 15  # multiply-adds up to which one thread is faster than several


@cache
def load_library() -> ctypes.CDLL | None:
    """The compiled library, built in a few seconds and cached on disk; None, with a log line, if that fails."""
    try:
        load()
        from torch._inductor.codecache import CppCodeCache

        source = "\n".join(Path(__file__).with_name(name).read_text() for name in SOURCES)
        made: ctypes.CDLL = CppCodeCache.load(source, needs_vec_isa=False)
        there, size = ctypes.c_void_p, ctypes.c_long
        made.product.argtypes = [there] * 5 + [size] * 4
        made.layers.argtypes = [there, size, there, size, there, there, *[size] * 3, *[there] * 5, size]
        made.product.restype = made.layers.restype = None
        register_operation()
        global ready
        ready = True
        return made
    except Exception as error:  # a compiler may raise anything; without it decoding is only slower
        why = " ".join(str(error).split())[:200] or type(error).__name__
        log.warning("products of a few rows are slower, not compiled: %s", why)
        return None


def is_available() -> bool:
    """Whether the library can be used; the first call builds it, except while torch.compile is tracing."""
    return ready if torch.compiler.is_compiling() else load_library() is not None


def few_rows(x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    """`F.linear`, (...,K) to (...,N) in float32; with scales (N,), the weights are int8 times scales."""
    code = load_library()
    assert code is not None
    x, y = x.contiguous(), empty_result(x, weight, scales, bias)
    (outs, width), rows = weight.shape, x.numel() // weight.shape[1]
    threads = torch.get_num_threads() if rows * width * outs > SMALL else 1
    code.product(
        x.data_ptr(), weight.data_ptr(), None if scales is None else scales.data_ptr(),
        None if bias is None else bias.data_ptr(), y.data_ptr(), rows, width, outs, threads,
    )  # fmt: skip
    return y


def empty_result(x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    """An uninitialised result; also the fake tensor implementation."""
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@cache
def register_operation() -> torch.library.Library:
    """Register `torch.ops.anyformer.few_rows`, a custom op that is opaque to torch.compile.

    Done only once the library is loaded: registering takes a third of a second.
    """
    known = torch.library.Library("anyformer", "FRAGMENT")
    known.define("few_rows(Tensor x, Tensor weight, Tensor? scales, Tensor? bias) -> Tensor")
    known.impl("few_rows", few_rows, "CPU")
    torch.library.register_fake("anyformer::few_rows", empty_result, lib=known)
    return known


class FewRows(TorchFunctionMode):
    """While active, `F.linear` of a few float32 rows on a CPU runs our kernel."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear and not kwargs and is_small_product(args[0], args[1]) and is_available():
            return few_rows(args[0], args[1], None, args[2] if len(args) > 2 else None)
        return function(*args, **(kwargs or {}))


def is_small_product(x: Tensor, weight: Tensor) -> bool:
    """Whether this is a linear layer of a few float32 rows on a CPU."""
    return (
        weight.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
        and weight.dim() == 2 and weight.is_contiguous() and x.numel() <= FEW * weight.shape[1]
    )  # fmt: skip

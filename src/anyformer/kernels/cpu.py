"""Products of a few rows with weights on a CPU by code of our own, few_rows.cpp; torch's own where it cannot be made.

Decoding reads every weight for a token or a handful of them, and the reading is all its time. Torch's products are
made for many rows: eight rows take it three times as long as one, and weights in 8 bits it has to widen first.
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

SOURCES = ("few_rows.cpp", "layers.cpp")  # one after the other: the second goes on from the first
FEW = 24  # rows up to which float32 products are faster than torch's
ready = False  # whether there is machine code by now
SMALL = 1 << 15  # products of rows and weights below which one thread is faster than waiting for another


@cache
def load_library() -> ctypes.CDLL | None:
    """The machine code, made in a few seconds and kept on disk; None, with a line in the log, where that fails."""
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
    except Exception as error:  # whatever a compiler may raise: without it things are only slower
        why = " ".join(str(error).split())[:200] or type(error).__name__
        log.warning("products of a few rows are slower, not compiled: %s", why)
        return None


def is_available() -> bool:
    """Whether there is machine code; the first to ask waits for it, but within torch's compiler nobody waits."""
    return ready if torch.compiler.is_compiling() else load_library() is not None


def few_rows(x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    """As `F.linear`, (...,K) to (...,N) in float32; where there are scales (N,), weights are scales * 8 bits."""
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
    """An empty result."""
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@cache
def register_operation() -> torch.library.Library:
    """One node for torch's compiler, `torch.ops.anyformer.few_rows`, which it neither looks into nor takes apart.

    Told when there is machine code: to tell takes torch a third of a second.
    """
    known = torch.library.Library("anyformer", "FRAGMENT")
    known.define("few_rows(Tensor x, Tensor weight, Tensor? scales, Tensor? bias) -> Tensor")
    known.impl("few_rows", few_rows, "CPU")
    torch.library.register_fake("anyformer::few_rows", empty_result, lib=known)
    return known


class FewRows(TorchFunctionMode):
    """While it lasts, `F.linear` of a few rows in float32 on a CPU is ours."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear and not kwargs and is_small_product(args[0], args[1]) and is_available():
            return few_rows(args[0], args[1], None, args[2] if len(args) > 2 else None)
        return function(*args, **(kwargs or {}))


def is_small_product(x: Tensor, weight: Tensor) -> bool:
    """Whether this product is one of a few rows in float32 on a CPU."""
    return (
        weight.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
        and weight.dim() == 2 and weight.is_contiguous() and x.numel() <= FEW * weight.shape[1]
    )  # fmt: skip

"""Float32 linear layers of many rows through oneDNN, on AMD processors with AVX-512.

Torch's CPU matmul uses MKL, which reaches 107 GFLOP/s on one core of an EPYC with AVX-512, about what AVX2 gives;
oneDNN, also part of torch, reaches 230 (benchmarks/LOG.md). Other processors were not measured and keep MKL. The choice
depends on the processor and the shapes alone, never on timing, so a repeated run is bitwise equal.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

Multiply = Callable[[Tensor, Tensor, Tensor | None, str, list[Any], str], Tensor]

FEWEST = 16  # rows below which MKL is as fast, bound by reading the weights
MANY = 64  # rows from which a graph without gradients is not a decode step (kernels/cpu.py)
SMALL = 1 << 21  # multiply-adds below which the call overhead exceeds the gain
STEPS, FEW_STEPS = 8, 4  # row counts per power of two that are not padded; others are padded with rows of zeros
FEW = 256  # rows below which FEW_STEPS applies: the prompts of a server, of any length
registered = False  # whether the custom op `many_rows` is registered
PLAIN = (Tensor, nn.Parameter)  # not FakeTensor, DTensor or functorch tensors, which have their own dispatch


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`, (...,K) to (...,N), forward and backward."""
    if torch.compiler.is_compiling():
        return linear_in_graph(x, weight, bias)
    if not takes(x, weight):
        return F.linear(x, weight, bias)
    learned = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if torch.is_grad_enabled() and learned:
        y: Tensor = Product.apply(x, weight, bias)
        return y
    return multiply(x, weight, bias)


def linear_in_graph(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` under torch.compile: a custom op in the graph of a training step or of many rows.

    Not in graphs of decoding, whose passes match torch's own ops by name, nor in exported ones, which must be portable.
    """
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu" and type(weight) in PLAIN
    if not registered or not plain or torch.compiler.is_exporting() or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    if torch._C._are_functorch_transforms_active():  # it has no rule for the op, and would silently drop its tangents
        return F.linear(x, weight, bias)
    if (torch.is_grad_enabled() and weight.requires_grad) or is_prompt(x, weight):
        y: Tensor = torch.ops.anyformer.many_rows(x, weight, bias)
        return y
    return F.linear(x, weight, bias)


def is_prompt(x: Tensor, weight: Tensor) -> bool:
    """Whether a matmul without gradients has more rows than a decode step.

    Its size is checked by the custom op itself: here each weight size would be a guard, with a graph of its own.
    """
    return x.numel() // weight.shape[1] >= MANY


def sum_of_outer(grad: Tensor, x: Tensor) -> Tensor:
    """grad.T @ x, (R,N) and (R,K) to (N,K): a weight gradient, not differentiated further."""
    if torch.compiler.is_compiling():
        return grad.T @ x
    return multiply_transposed(grad, x) if takes(grad, x, len(x)) else grad.T @ x


def takes(x: Tensor, other: Tensor, inner: int | None = None) -> bool:
    """Whether oneDNN computes this matmul: plain float32 tensors with enough rows, not traced or transformed.

    `inner` is the size of the reduced axis, if that is not the last of x.
    """
    if type(x) is not Tensor or not x.is_cpu or x.dtype != torch.float32 or not is_faster() or not x.numel():
        return False
    inner = inner or x.shape[-1]
    return (
        x.numel() >= FEWEST * inner and x.numel() // inner * other.numel() >= SMALL
        and type(other) in PLAIN and other.is_cpu and other.dtype == torch.float32 and not is_watched()
    )  # fmt: skip


@cache
def is_faster() -> bool:
    """Whether oneDNN is faster on this processor and available in torch.

    A lower `ATEN_CPU_CAPABILITY` asks torch to compute as on an older processor, so MKL is used again.
    """
    if platform.machine() != "x86_64" or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return find_vendor() == "AuthenticAMD" and torch.backends.mkl.is_available() and find_product() is not None


def find_vendor() -> str:
    """The CPU vendor from /proc/cpuinfo; empty where that is missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


@cache
def find_product() -> Multiply | None:
    """The oneDNN op that torch.compile uses for a linear layer with an activation; None if missing."""
    if not torch.backends.mkldnn.is_available():
        return None
    operation: Multiply | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return operation


def is_watched() -> bool:
    """Whether a tracer, autocast, functorch, forward-mode AD or a mode such as the FLOP counter must see `F.linear`."""
    return (
        torch.jit.is_tracing() or torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.enabled
        or torch._C._len_torch_dispatch_stack() > 0 or torch._C._len_torch_function_stack() > 0
        or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )  # fmt: skip


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, (...,K) to (...,N); the weight may be a transposed view."""
    product = find_product()
    assert product is not None
    rows = x.numel() // x.shape[-1]
    more = missing_rows(rows)
    if not more:
        return product(x, weight, bias, "none", [], "")
    padded = F.pad(x.reshape(rows, x.shape[-1]), (0, 0, 0, more))
    return product(padded, weight, bias, "none", [], "")[:rows].view(*x.shape[:-1], weight.shape[0])


def multiply_transposed(grad: Tensor, x: Tensor) -> Tensor:
    """grad.T @ x, (R,N) and (R,K) to (N,K)."""
    product = find_product()
    assert product is not None
    more = missing_rows(len(x))
    if more:
        grad, x = F.pad(grad, (0, 0, 0, more)), F.pad(x, (0, 0, 0, more))
    return product(grad.mT, x.mT, None, "none", [], "")


def missing_rows(rows: int) -> int:
    """How many rows of zeros to add: eight row counts per power of two need none, four below `FEW` rows.

    oneDNN generates half a megabyte of code for each shape and caches a thousand shapes. Batches of varying length
    would fill that cache; padding by at most an eighth, or a quarter of few rows, keeps the shapes few.
    """
    steps = STEPS if rows >= FEW else FEW_STEPS
    step = max(1 << (rows.bit_length() - 1), steps) // steps
    return -rows % step


class Product(torch.autograd.Function):
    """`multiply` with its gradients, two matmuls of the same size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])  # (R,N), (R,K)
        twice = torch.is_grad_enabled()  # double backward
        to_x = to_weight = None
        if needs_x:
            to_x = (rows @ weight if twice else multiply(rows, weight.mT, None)).view_as(x)
        if needs_weight:
            to_weight = rows.mT @ inputs if twice else multiply_transposed(rows, inputs)
        return to_x, to_weight, rows.sum(0) if needs_bias else None


@cache
def register_operations() -> torch.library.Library | None:
    """Register two custom ops that are opaque to torch.compile; None where oneDNN is not faster.

    Done at import, in a few milliseconds, so that a model compiled by its user has them as well.
    """
    if not is_faster():
        return None
    known = torch.library.Library("anyformer", "FRAGMENT")
    known.define("many_rows(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    known.define("sum_of_outer(Tensor grad, Tensor x) -> Tensor")
    known.impl("many_rows", many_rows, "CPU")
    known.impl("sum_of_outer", sum_of_outer, "CPU")
    torch.library.register_fake("anyformer::many_rows", empty_product, lib=known)
    torch.library.register_fake("anyformer::sum_of_outer", lambda g, x: g.new_empty(g.shape[1], x.shape[1]), lib=known)
    torch.library.register_autograd("anyformer::many_rows", graph_gradients, setup_context=keep_inputs, lib=known)
    global registered
    registered = True
    return known


def many_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return multiply(x, weight, bias) if takes(x, weight) else F.linear(x, weight, bias)


def empty_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def graph_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """`Product.backward` in custom ops."""
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    rows, inputs = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])  # (R,N), (R,K)
    to_x = torch.ops.anyformer.many_rows(rows, weight.mT, None).view_as(x) if needs_x else None
    to_weight = torch.ops.anyformer.sum_of_outer(rows, inputs) if needs_weight else None
    return to_x, to_weight, rows.sum(0) if needs_bias else None


register_operations()

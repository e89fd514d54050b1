"""GELU behind a linear layer on a GPU: its backward pass also sums the gradient of the layer's bias.

The compiler makes these two kernels, which read the largest activations of a Transformer twice; here it is one pass.
The forward pass is a plain one over the entries. `enable` compares both with torch and uses them where they agree.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.feeds import mlp

log = logging.getLogger("anyformer")
BLOCK = 2048
STRIP, ROWS, COLUMNS = 256, 16, 128  # rows of a strip, and the tile that is read at once
CLOSE = 1e-2  # relative, in bf16


@torch.library.custom_op("anyformer::biased_gelu", mutates_args=())
def biased_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """GELU of x (..., I), to which `bias` (I,) has been added already; its gradient is found here all the same."""
    from anyformer.kernels.activation_triton import gelu_forward

    x = x.contiguous()
    y = torch.empty_like(x)
    count = x.numel()
    gelu_forward[(-(-count // BLOCK),)](x, y, count, TANH=tanh, BLOCK=BLOCK, num_warps=8)
    return y


@biased_gelu.register_fake
def _(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("anyformer::biased_gelu_backward", mutates_args=())
def biased_gelu_backward(grad: Tensor, x: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """Gradients at x (..., I), and at the bias (I,) in single precision."""
    from anyformer.kernels.activation_triton import gelu_backward

    grad, x = grad.contiguous(), x.contiguous()
    columns = x.shape[-1]
    rows = x.numel() // columns
    strips = -(-rows // STRIP)
    d_x = torch.empty_like(x)
    sums = torch.empty(strips, columns, device=x.device)
    gelu_backward[(-(-columns // COLUMNS), strips)](
        grad, x, d_x, sums, rows, columns, TANH=tanh, STRIP=STRIP, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4
    )
    return d_x, sums.sum(0)


@biased_gelu_backward.register_fake
def _(grad: Tensor, x: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return d_x, x.new_empty(x.shape[-1], dtype=torch.float32)


def keep_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, bool], output: Tensor) -> None:
    x, bias, ctx.tanh = inputs
    ctx.save_for_backward(x)
    ctx.bias_dtype = bias.dtype


def gelu_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    (x,) = ctx.saved_tensors
    d_x, d_bias = biased_gelu_backward(grad, x, ctx.tanh)
    return d_x, d_bias.to(ctx.bias_dtype), None


biased_gelu.register_autograd(gelu_gradients, setup_context=keep_inputs)


def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """gelu(x @ weight.T + bias); the product adds the bias, the activation finds its gradient."""
    found: Tensor = biased_gelu(F.linear(x, weight, bias.detach()), bias, tanh)
    return found


@cache
def enable(device: torch.device) -> bool:
    """Use the operation in networks that train on this device from now on, if it agrees with torch there."""
    from anyformer.kernels.triton import triton

    if device.type != "cuda" or triton is None:
        return False
    try:
        worst = max(compare(device, tanh) for tanh in (False, True))
    except Exception as error:  # whatever a compiler of kernels may raise: without it things are only slower
        log.warning("GELU is slower, its kernel does not run: %s", " ".join(str(error).split())[:200])
        return False
    if not worst <= CLOSE:
        log.warning("GELU is slower, its kernel is off by %.1e", worst)
        return False
    mlp.fused_gelu = linear_gelu
    return True


@torch.enable_grad()
def compare(device: torch.device, tanh: bool) -> float:
    """How far outputs and gradients of a small sample are from torch's, relative to their size."""
    draw = torch.Generator(device).manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, device=device, generator=draw).bfloat16() for shape in ((300, 64), (200, 64), (200,))
    )
    found = []
    for fused in (True, False):
        h, w, b = (t.clone().requires_grad_() for t in (x, weight, bias))
        y = linear_gelu(h, w, b, tanh) if fused else F.gelu(F.linear(h, w, b), approximate="tanh" if tanh else "none")
        y.backward(y.detach())
        found.append([y.detach().float(), *(t.grad.float() for t in (h, w, b) if t.grad is not None)])
    return max(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(*found, strict=True))

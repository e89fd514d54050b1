"""Fused MLP activations on a GPU, forward and backward.

After a linear layer with a bias, the backward kernel also reduces the bias gradient: torch.compile emits two kernels
for that, which read the largest activations of a Transformer twice. For a gated layer, interleaved (gate, value) pairs
are loaded contiguously instead of with a stride of two. `enable` uses the kernels only where they agree with torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core import activation as reference
from anyformer.kernels.trying import agrees

BLOCK = 2048
STRIP, ROWS, COLUMNS = 256, 16, 128  # rows per strip, and the tile loaded at once
CLOSE = 1e-2  # relative tolerance in bf16


@torch.library.custom_op("anyformer::biased_act", mutates_args=())
def biased_act(x: Tensor, bias: Tensor, act: str) -> Tensor:
    """Activation of x (..., I), which already includes `bias` (I,); the backward pass returns the bias gradient too."""
    from anyformer.kernels.activation_triton import act_forward

    x = x.contiguous()
    y = torch.empty_like(x)
    act_forward[(-(-x.numel() // BLOCK),)](x, y, x.numel(), ACT=act, BLOCK=BLOCK, num_warps=4)
    return y


@biased_act.register_fake
def _(x: Tensor, bias: Tensor, act: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("anyformer::biased_act_backward", mutates_args=())
def biased_act_backward(grad: Tensor, x: Tensor, act: str) -> tuple[Tensor, Tensor]:
    """Gradients of x (..., I) and, in fp32, of the bias (I,)."""
    from anyformer.kernels.activation_triton import act_backward

    grad, x = grad.contiguous(), x.contiguous()
    columns = x.shape[-1]
    rows = x.numel() // columns
    strips = -(-rows // STRIP)
    d_x = torch.empty_like(x)
    sums = torch.empty(strips, columns, device=x.device)
    act_backward[(-(-columns // COLUMNS), strips)](
        grad, x, d_x, sums, rows, columns, ACT=act, STRIP=STRIP, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4
    )
    return d_x, sums.sum(0)


@biased_act_backward.register_fake
def _(grad: Tensor, x: Tensor, act: str) -> tuple[Tensor, Tensor]:
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return d_x, x.new_empty(x.shape[-1], dtype=torch.float32)


def keep_biased(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
    x, bias, ctx.act = inputs
    ctx.save_for_backward(x)
    ctx.bias_dtype = bias.dtype


def biased_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    (x,) = ctx.saved_tensors
    d_x, d_bias = biased_act_backward(grad, x, ctx.act)
    return d_x, d_bias.to(ctx.bias_dtype), None


biased_act.register_autograd(biased_gradients, setup_context=keep_biased)


@torch.library.custom_op("anyformer::gate", mutates_args=())
def gate(x: Tensor, act: str) -> Tensor:
    """act(gate) * value (..., I) from interleaved (gate, value) pairs (..., 2 I)."""
    from anyformer.kernels.activation_triton import gate_forward

    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], x.shape[-1] // 2)
    gate_forward[(-(-y.numel() // BLOCK),)](x, y, y.numel(), ACT=act, BLOCK=BLOCK, num_warps=8)
    return y


@gate.register_fake
def _(x: Tensor, act: str) -> Tensor:
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


@torch.library.custom_op("anyformer::gate_backward", mutates_args=())
def gate_gradients(grad: Tensor, x: Tensor, act: str) -> Tensor:
    """The gradient of x (..., 2 I)."""
    from anyformer.kernels.activation_triton import gate_backward

    grad, x = grad.contiguous(), x.contiguous()
    d_x = torch.empty_like(x)
    gate_backward[(-(-grad.numel() // BLOCK),)](grad, x, d_x, grad.numel(), ACT=act, BLOCK=BLOCK, num_warps=8)
    return d_x


@gate_gradients.register_fake
def _(grad: Tensor, x: Tensor, act: str) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def keep_gated(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    x, ctx.act = inputs
    ctx.save_for_backward(x)


gate.register_autograd(
    lambda ctx, grad: (gate_gradients(grad, ctx.saved_tensors[0], ctx.act), None), setup_context=keep_gated
)


def linear_act(x: Tensor, weight: Tensor, bias: Tensor, act: str) -> Tensor:
    """act(x @ weight.T + bias): the matmul adds the bias, the activation's backward computes the bias gradient."""
    found: Tensor = biased_act(F.linear(x, weight, bias.detach()), bias, act)
    return found


@cache
def enable(device: torch.device, act: str, gated: bool) -> bool:
    """Use the fused ops for this activation in all later training, if they agree with torch on this device."""
    known = act in reference.FUSED_ACTS
    if not known or not agrees(device, act, lambda: compare(device, act, gated=gated), CLOSE):
        return False
    reference.fused = reference.FusedActivation(linear_act, gate)
    reference.fused_forms |= {(act, gated)}
    return True


@torch.enable_grad()
def compare(device: torch.device, act: str, *, gated: bool) -> float:
    """Largest relative error of outputs and gradients against torch on a small sample."""
    draw = torch.Generator(device).manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, device=device, generator=draw).bfloat16() for shape in ((300, 64), (200, 64), (200,))
    )
    found = []
    for fused in (True, False):
        h, w, b = (t.clone().requires_grad_() for t in (x, weight, bias))
        if gated:
            pre = F.linear(h, w, b)
            pairs = pre.unflatten(-1, (-1, 2)).unbind(-1)
            y = gate(pre, act) if fused else reference.ACTS[act](pairs[0]) * pairs[1]
        else:
            y = linear_act(h, w, b, act) if fused else reference.ACTS[act](F.linear(h, w, b))
        y.backward(y.detach())
        found.append([y.detach().float(), *(t.grad.float() for t in (h, w, b) if t.grad is not None)])
    return max(float((a - b).norm() / b.norm().clamp(min=1e-12)) for a, b in zip(*found, strict=True))

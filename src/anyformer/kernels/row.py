"""A linear layer of one row fused with the norm before it and the activation and residual sum after it.

A decode step at batch size 1 reads every weight once; its time is memory bandwidth plus kernel launches. Norms,
activations and residual sums need no launches of their own here: every program normalises the whole input row for
itself, which costs little beside reading its rows of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.core.static_cache import next_power_of_two
from anyformer.kernels.decode import starts_early

ACTS = ("none", "relu", "gelu", "gelu_tanh", "silu")
NORMS = ("none", "rms", "layer")
MANY = 8192  # weight rows from which there are enough programs whatever the rows per program


class Cut(NamedTuple):
    """Tile of a program: weight rows, channels per turn, and warps."""

    rows: int
    block: int
    warps: int


def cut_for(width: int, outs: int, normed: bool) -> Cut:
    """Tiles tuned on an H200 for widths of 768 to 5,632; a norm needs all channels of the row at once."""
    block = next_power_of_two(width) if normed else min(1024, next_power_of_two(width))
    if block > 1024:
        return Cut(max(2, 8192 // block), block, 4 if block <= 4096 else 8)
    if outs >= MANY:
        return Cut(4, block, 2)
    return Cut(8, block, 4) if width <= 1024 else Cut(2, block, 4)


@torch.library.custom_op("anyformer::row_linear", mutates_args=())
def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: str, gain: Tensor | None, shift: Tensor | None, eps: float,
    act: str, gated: bool, added: Tensor | None,
) -> Tensor:  # fmt: skip
    """act(norm(x) @ weight.T + bias) + added for a single row x (..., D); `gated`: act(even outputs) * odd ones."""
    from anyformer.kernels.row_triton import map_row

    assert x.numel() == weight.shape[1] and weight.stride(1) == 1
    x, width, outs = x.contiguous(), weight.shape[1], weight.shape[0]
    out = shape_of(x, weight, bias, norm, gain, shift, eps, act, gated, added)
    cut, early = cut_for(width, outs, norm != "none"), starts_early(x.device)
    map_row[(-(-outs // cut.rows),)](
        x, weight, bias, gain, shift, None if added is None else added.contiguous(), out, eps, outs, weight.stride(0),
        WIDTH=width, TURNS=-(-width // cut.block), BLOCK=cut.block, ROWS=cut.rows, NORM=NORMS.index(norm),
        ACT=ACTS.index(act), GATED=gated, EARLY=early, num_warps=cut.warps, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return out


@row_linear.register_fake
def shape_of(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: str, gain: Tensor | None, shift: Tensor | None, eps: float,
    act: str, gated: bool, added: Tensor | None,
) -> Tensor:  # fmt: skip
    """An uninitialised result (..., O); also the fake tensor implementation."""
    return x.new_empty(*x.shape[:-1], weight.shape[0] // 2 if gated else weight.shape[0])


def plain(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: str, gain: Tensor | None, shift: Tensor | None, eps: float,
    act: str, gated: bool, added: Tensor | None,
) -> Tensor:  # fmt: skip
    """Plain torch reference of `row_linear`."""
    from torch.nn import functional as F

    if norm == "rms":
        x = F.rms_norm(x, x.shape[-1:], gain, eps)
    if norm == "layer":
        x = F.layer_norm(x, x.shape[-1:], gain, shift, eps)
    acts = {"none": lambda y: y, "relu": F.relu, "gelu": F.gelu, "silu": F.silu,
            "gelu_tanh": lambda y: F.gelu(y, approximate="tanh")}  # fmt: skip
    y = F.linear(x, weight, bias)
    y = acts[act](y[..., 0::2]) * y[..., 1::2] if gated else acts[act](y)
    return y if added is None else y + added

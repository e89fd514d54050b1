"""A linear map of one row with what stands around it: the norm before, the activation and the sum after, in one pass.

A step for one text reads every weight once and little else; its time is that of the reading and of starting each
kernel. Norms, activations and sums of the stream have no kernels of their own here: every program that holds some rows
of the weights normalises the row of channels for itself, which costs nothing beside the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

ACTS = ("none", "relu", "gelu", "gelu_tanh", "silu")
NORMS = ("none", "rms", "layer")
ROWS, WIDEST = 4, 2048  # rows of the weights a program holds, and channels of them at a time
EARLY = False  # start before what precedes has ended (programmatic dependent launch); to be measured before it is used


@torch.library.custom_op("anyformer::row_linear", mutates_args=())
def row_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: str, gain: Tensor | None, shift: Tensor | None, eps: float,
    act: str, gated: bool, added: Tensor | None,
) -> Tensor:  # fmt: skip
    """act(norm(x) weight' + bias) + added for x (..., D) that is one row; `gated`: act(even outputs) * odd ones."""
    from anyformer.core.row_triton import map_row

    assert x.numel() == weight.shape[1] and weight.stride(1) == 1
    x, width, outs = x.contiguous(), weight.shape[1], weight.shape[0]
    out = shape_of(x, weight, bias, norm, gain, shift, eps, act, gated, added)
    block = min(WIDEST, 1 << (width - 1).bit_length())
    map_row[(-(-outs // ROWS),)](
        x, weight, bias, gain, shift, None if added is None else added.contiguous(), out, eps, outs, weight.stride(0),
        WIDTH=width, TURNS=-(-width // block), BLOCK=block, ROWS=ROWS, NORM=NORMS.index(norm), ACT=ACTS.index(act),
        GATED=gated, EARLY=EARLY, num_warps=4, **({"launch_pdl": True} if EARLY else {}),
    )  # fmt: skip
    return out


@row_linear.register_fake
def shape_of(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: str, gain: Tensor | None, shift: Tensor | None, eps: float,
    act: str, gated: bool, added: Tensor | None,
) -> Tensor:  # fmt: skip
    """An empty result (..., O)."""
    return x.new_empty(*x.shape[:-1], weight.shape[0] // 2 if gated else weight.shape[0])


def plain(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: str, gain: Tensor | None, shift: Tensor | None, eps: float,
    act: str, gated: bool, added: Tensor | None,
) -> Tensor:  # fmt: skip
    """The definition."""
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

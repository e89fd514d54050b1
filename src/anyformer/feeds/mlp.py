"""The position-wise feed-forward network."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core import activation
from anyformer.core.activation import ACTS, Act, split_pairs
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer, is_plain_linear
from anyformer.errors import check_at_least, check_fraction
from anyformer.kernels.dropout import dropout
from anyformer.slots import Feed


class MLP(Feed):
    """down(act(up(x))), or gated: down(act(gate(x)) * up(x)); the inner `width` is 4 times the model's by default."""

    about: ClassVar[About | None] = About(
        "y = W2 act(W1 x); gated: y = W2 (act(Wg x) * W1 x)", "1706.03762, 2002.05202", "8 T D^2"
    )

    width: int | None = None
    """Channels inside; 4 times the model's if not given."""
    act: Act = "gelu"
    """Activation function."""
    gated: bool = False
    """Whether a gate multiplies the inner channels (SwiGLU and the like)."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""

    def check(self) -> None:
        check_at_least("MLP", "width", self.width, 1, fix="leave it out for 4 times the model's")
        check_fraction("MLP", "dropout", self.dropout, fix="use 0.1")

    def build(self, width: int) -> nn.Module:
        return MLPModule(self, width)


class MLPModule(nn.Module):
    """Gate and value of an inner channel are interleaved rows of `up`, (inner, 2), so that sharding keeps them
    together."""

    def __init__(self, spec: MLP, width: int) -> None:
        super().__init__()
        inner = 4 * width if spec.width is None else spec.width
        self.spec, self.act = spec, ACTS[spec.act]
        self.up = LinearLayer(width, inner * 2 if spec.gated else inner, bias=spec.bias)
        self.down = LinearLayer(inner, width, bias=spec.bias)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        h = self.activate(x)  # (B,T,inner)
        return self.down(dropout(h, self.spec.dropout) if self.spec.dropout and self.training else h)

    def activate(self, x: Tensor) -> Tensor:
        """The inner channels, (B,T,D) to (B,T,inner)."""
        spec, fused = self.spec, activation.fused
        if fused is not None and spec.bias and not spec.gated and self.can_fuse(x):
            return fused.linear_act(x, self.up.weight, self.up.bias, spec.act)
        h = self.up(x)
        if fused is not None and spec.gated and self.can_fuse(h):
            return fused.gate(h, spec.act)
        if spec.gated:
            gate, value = split_pairs(h)
            return self.act(gate) * value
        return self.act(h)

    def can_fuse(self, x: Tensor) -> bool:
        """Whether the fused operation can be used: in training, in half precision, with an unsharded layer (a sharded
        one
        has its own hooks)."""
        if not (self.training and x.is_cuda and (self.spec.act, self.spec.gated) in activation.fused_forms):
            return False
        half = torch.is_autocast_enabled("cuda") or x.dtype in (torch.bfloat16, torch.float16)
        return half and is_plain_linear(self.up) and type(self.up.weight) is nn.Parameter

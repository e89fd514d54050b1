"""Cross-attention: queries from the decoder, keys and values from the encoder's output."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import Scores, attend
from anyformer.core.context import Context
from anyformer.core.linear import LinearLayer
from anyformer.core.state import CrossKVCache
from anyformer.core.static_cache import StaticCache
from anyformer.errors import UserError, check_at_least
from anyformer.mixers.attention import AttentionInputs
from anyformer.mixers.heads import Scale, check_heads, head_sizes, scale_of
from anyformer.slots import Mixer, Relative


class Cross(Mixer):
    """Attention over `context.memory`; its keys and values are computed once per source when decoding."""

    about: ClassVar[About | None] = About(
        "y_i = sum_j softmax_j(q_i . k_j / sqrt(C)) v_j, k and v from the memory",
        "1706.03762",
        "2 T D^2 + 2 S D^2 + 2 T S D",
    )

    heads: int
    """Attention heads."""
    kv_heads: int | None = None
    """Heads of keys and values, fewer than `heads` for GQA, 1 for MQA; as many as `heads` if not given."""
    key_size: int | None = None
    """Channels of a query or key in one head; width / heads if not given."""
    value_size: int | None = None
    """Channels of a value in one head; width / heads if not given."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    scale: Scale = "sqrt"
    """Factor on the scores."""
    dropout: float = 0.0
    """Dropout probability."""

    has_static_cache: ClassVar[bool] = True
    takes_added: ClassVar[bool] = True
    looks_at_memory: ClassVar[bool] = True

    def check(self) -> None:
        check_heads("Cross", self.heads, self.kv_heads, self.dropout, self.scale)
        for name in ("key_size", "value_size"):
            value = getattr(self, name)
            check_at_least("Cross", name, value, 1, fix="use 1 or more, or leave it out")

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return CrossModule(self, width, width if memory_width is None else memory_width)


class CrossModule(nn.Module):
    def __init__(self, spec: Cross, width: int, memory_width: int) -> None:
        super().__init__()
        sizes = head_sizes(width, spec.heads, spec.kv_heads, spec.key_size, spec.value_size)
        self.spec, self.sizes = spec, sizes
        self.scale = scale_of(spec.scale, sizes.channels)
        self.q = LinearLayer(width, sizes.heads * sizes.channels, bias=spec.bias)
        self.kv = LinearLayer(memory_width, sizes.groups * (sizes.channels + sizes.value_channels), bias=spec.bias)
        self.out = LinearLayer(sizes.heads * sizes.value_channels, width, bias=spec.bias)

    def forward(self, x: Tensor, context: Context, state: CrossKVCache | None, tables: tuple[Tensor, ...]) -> Tensor:
        q, k, v, scores = self.prepare(x, context, state, tables)
        y = attend(q, k, v, scores, dropout=self.spec.dropout if self.training else 0.0)  # (B,H,T,C')
        return self.out(y.transpose(1, 2).flatten(2))

    def prepare(
        self, x: Tensor, context: Context, state: CrossKVCache | None, tables: tuple[Tensor, ...]
    ) -> AttentionInputs:
        """Queries from the decoder, keys and values from the memory or, once computed, from the cache."""
        q = (
            self.q(x if context.added is None else x + context.added)
            .unflatten(-1, (self.sizes.heads, self.sizes.channels))
            .transpose(1, 2)
        )  # (B,H,T,C)
        if state is not None and state.keys is not None and state.values is not None:
            k, v = state.keys, state.values
        else:
            k, v = self.look_at(context)
            if state is not None:
                state.keys, state.values = k, v
        return AttentionInputs(q, k, v, Scores(scale=self.scale, key_mask=context.memory_mask, ordered=True))

    def look_at(self, context: Context) -> tuple[Tensor, Tensor]:
        if context.memory is None:
            raise UserError("cross-attention has nothing to look at", fix="pass memory=, the encoder's output")
        k, v = self.split(self.kv(context.memory))
        if context.memory_added is not None:  # positions are added to keys, not values (DETR)
            k, _ = self.split(self.kv(context.memory + context.memory_added))
        return k, v

    def split(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """(B,S,rows) into keys (B,G,S,C) and values (B,G,S,C')."""
        kv = fused.unflatten(-1, (self.sizes.groups, -1)).transpose(1, 2)  # (B,G,S,C+C')
        k, v = kv.split([self.sizes.channels, self.sizes.value_channels], dim=-1)
        return k, v

    def state(self, batch: int, limit: int | None) -> CrossKVCache:
        """An empty cache for the memory's keys and values, filled by the first pass."""
        return CrossKVCache()

    def static_cache(self, rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> StaticCache:
        """An empty static cache, for memories of different lengths."""
        return StaticCache.empty(rows, columns, self.sizes[1:], device, dtype)

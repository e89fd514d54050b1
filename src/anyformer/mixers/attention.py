"""Self-attention."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import Scores, attend
from anyformer.core.context import Context, TokenSubset, take
from anyformer.core.linear import LinearLayer
from anyformer.core.state import KVCache
from anyformer.core.static_cache import StaticCache
from anyformer.errors import UserError, check_at_least
from anyformer.mixers.heads import Scale, check_heads, head_sizes, scale_of
from anyformer.slots import HeadSizes, Mixer, Norm, Relative


class Attention(Mixer):
    """softmax(q.k * scale) v in `heads` heads; fewer `kv_heads` share keys and values (GQA; one is MQA).

    `key_size` and `value_size` are channels of one head and default to width / heads. `window` is a sliding window of
    that many newest tokens, itself included (that many to either side if not causal). `soft_cap` c turns scores s into
    c tanh(s / c). `out_bias` defaults to `bias`.
    """

    about: ClassVar[About | None] = About(
        "y_i = sum_j softmax_j(q_i . k_j / sqrt(C)) v_j in H heads",
        "1706.03762, 1911.02150, 2305.13245",
        "4 T D^2 + 2 T^2 D",
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
    out_bias: bool | None = None
    """Whether the output projection has a bias; as `bias` if not given."""
    scale: Scale = "sqrt"
    """Factor on the scores."""
    qk_norm: Norm | None = None
    """Norm of queries and keys; none if not given."""
    window: int | None = None
    """Sliding window in tokens, itself included; all tokens if not given."""
    soft_cap: float | None = None
    """c in c tanh(scores / c); no cap if not given."""
    dropout: float = 0.0
    """Dropout probability of the attention weights."""

    supports_token_subset: ClassVar[bool] = True
    has_static_cache: ClassVar[bool] = True
    takes_added: ClassVar[bool] = True
    takes_relative: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True

    def check(self) -> None:
        check_heads("Attention", self.heads, self.kv_heads, self.dropout, self.scale)
        for name in ("key_size", "value_size", "window"):
            value = getattr(self, name)
            check_at_least("Attention", name, value, 1, fix="use 1 or more, or leave it out")
        if self.soft_cap is not None and self.soft_cap <= 0:
            raise UserError(
                f"soft_cap {self.soft_cap} is not positive", where="Attention", fix="use 50 or leave it out"
            )

    @property
    def takes_prefix(self) -> bool:
        return self.window is None

    def sizes(self, width: int) -> HeadSizes:
        return head_sizes(width, self.heads, self.kv_heads, self.key_size, self.value_size)

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return AttentionModule(self, width, causal, relative)


class AttentionInputs(NamedTuple):
    """The inputs of one layer's attention kernel; inspection recomputes attention maps from them."""

    q: Tensor  # (B,H,T,C)
    k: Tensor  # (B,G,S,C)
    v: Tensor  # (B,G,S,C')
    scores: Scores


class AttentionModule(nn.Module):
    """One fused projection gives queries, keys and values; rows are stored by KV head, (G, H/G + 2, C).

    This order lets torch's column-wise plan shard the projection without splitting a group over devices.
    """

    def __init__(self, spec: Attention, width: int, causal: bool, relative: Relative) -> None:
        super().__init__()
        sizes = spec.sizes(width)
        self.spec, self.sizes, self.causal, self.relative = spec, sizes, causal, relative
        self.scale = scale_of(spec.scale, sizes.channels)
        per_group = (sizes.per_group + 1) * sizes.channels + sizes.value_channels
        out_bias = spec.bias if spec.out_bias is None else spec.out_bias
        self.qkv = LinearLayer(width, sizes.groups * per_group, bias=spec.bias)
        self.q_norm = None if spec.qk_norm is None else spec.qk_norm.build(sizes.channels)
        self.k_norm = None if spec.qk_norm is None else spec.qk_norm.build(sizes.channels)
        self.out = LinearLayer(sizes.heads * sizes.value_channels, width, bias=out_bias)

    def forward(
        self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...],
        some: TokenSubset | None = None,
    ) -> Tensor:  # fmt: skip
        q, k, v, scores = self.prepare(x, context, state, tables)
        if some is not None:  # keys and values of all tokens, queries of the subset
            q, scores = take(q, some, 2), scores.for_subset(some)
        y = attend(q, k, v, scores, dropout=self.spec.dropout if self.training else 0.0)  # (B,H,T,C')
        return self.out(y.transpose(1, 2).flatten(2))  # (B,T,D)

    def prepare(
        self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...]
    ) -> AttentionInputs:
        """Queries, keys, values and the description of their scores; new keys and values are appended to the KV
        cache."""
        q, k, v = self.project(x, context)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = self.relative.rotate(q, tables), self.relative.rotate(k, tables)
        if state is not None:
            k, v = state.update(k, v, self.spec.window if self.causal and context.rolling else None)
        scores = Scores.among(
            context, k.shape[2], scale=self.scale, causal=self.causal, window=self.spec.window,
            soft_cap=self.spec.soft_cap, relative=self.relative, tables=tables,
        )  # fmt: skip
        return AttentionInputs(q, k, v, scores)

    def project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.split(self.qkv(x))
        if context.added is not None:  # positions are added to queries and keys, not values (DETR)
            q, k, _ = self.split(self.qkv(x + context.added))
        return q, k, v

    def split(self, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B,T,rows) into queries (B,H,T,C), keys (B,G,T,C) and values (B,G,T,C')."""
        batch, length, _ = fused.shape
        sizes = self.sizes
        groups = fused.view(batch, length, sizes.groups, -1)
        q, k, v = groups.split([sizes.per_group * sizes.channels, sizes.channels, sizes.value_channels], dim=-1)
        q = q.reshape(batch, length, sizes.heads, sizes.channels)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def state(self, batch: int, limit: int | None) -> KVCache:
        """An empty KV cache."""
        return KVCache(limit=limit)

    def static_cache(self, rows: int, columns: int, device: torch.device, dtype: torch.dtype) -> StaticCache:
        """An empty static KV cache, for rows of different lengths."""
        return StaticCache.empty(rows, columns, self.sizes[1:], device, dtype)

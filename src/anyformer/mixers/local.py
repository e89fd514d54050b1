"""Sliding-window attention computed in chunks: cost and memory are T x window instead of T x T."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.attend import attend
from anyformer.core.context import Context
from anyformer.core.state import KVCache
from anyformer.errors import check_at_least
from anyformer.kernels.bands import attend_in_bands
from anyformer.mixers.attention import Attention, AttentionModule
from anyformer.mixers.heads import check_heads
from anyformer.slots import HeadSizes, Mixer, Relative


class Local(Mixer):
    """`Attention(window=...)` at a cost linear in the length: the same parameters and outputs, computed in chunks.

    A token attends to the `window` newest tokens, itself included (that many to either side if not causal).
    The text is cut into chunks as long as the window, and a chunk attends to itself and its neighbours only. On a CPU
    `Attention(window=...)` is as efficient; on other devices it may compute all pairs and mask most.
    """

    heads: int
    """Attention heads."""
    window: int
    """Sliding window in tokens, itself included."""
    kv_heads: int | None = None
    """Heads of keys and values, fewer than `heads` for GQA, 1 for MQA; as many as `heads` if not given."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""

    takes_added: ClassVar[bool] = True
    takes_relative: ClassVar[bool] = True
    takes_rules: ClassVar[bool] = True
    about: ClassVar[About | None] = About(
        "y_i = sum_j softmax_j(q_i.k_j / sqrt(C)) v_j over 0 <= i - j < w (|i - j| < w without causal order)",
        "2004.05150 (sliding window)",
        "4 T D^2 + 4 T w D (6 T w D both ways)",
    )

    def check(self) -> None:
        check_heads("Local", self.heads, self.kv_heads, self.dropout, "sqrt")
        check_at_least("Local", "window", self.window, 1, fix="use 128")

    @property
    def whole(self) -> Attention:
        """Full attention with the same outputs."""
        return Attention(
            heads=self.heads, kv_heads=self.kv_heads, window=self.window, bias=self.bias, dropout=self.dropout
        )

    def sizes(self, width: int) -> HeadSizes:
        return self.whole.sizes(width)

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        return LocalModule(self.whole, width, causal, relative)


class LocalModule(AttentionModule):
    def forward(  # type: ignore[override]  # without token subsets
        self, x: Tensor, context: Context, state: KVCache | None, tables: tuple[Tensor, ...]
    ) -> Tensor:
        q, k, v, scores = self.prepare(x, context, state, tables)
        dropout = self.spec.dropout if self.training else 0.0
        assert self.spec.window is not None
        # The caller's own mask is T x S already; a decode step is short, with at most a window of keys.
        ruled = scores.allowed is not None or scores.added is not None
        if ruled or context.past or x.shape[1] <= self.spec.window or x.device.type == "cpu":
            y = attend(q, k, v, scores, dropout=dropout)  # (B,H,T,C')
        else:
            y = attend_in_bands(q, k, v, scores, dropout)
        return self.out(y.transpose(1, 2).flatten(2))  # (B,T,D)

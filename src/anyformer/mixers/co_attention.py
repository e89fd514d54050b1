"""Co-attention: queries from one stream, keys and values from the other one's tokens at the same layer (1908.02265)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context
from anyformer.core.state import CrossKVCache
from anyformer.errors import check_at_least
from anyformer.mixers.attention import AttentionInputs
from anyformer.mixers.cross import Cross, CrossModule
from anyformer.mixers.heads import check_heads
from anyformer.slots import Mixer, Relative


class CoAttention(Mixer):
    """Attention over `context.memory`, the tokens of the other of two `Streams`, which may have another width.

    `key_size` is channels of one head, by default width / heads. It computes the same as `Cross`, but its memory is
    different in every layer and pass, so that it cannot be cached.
    """

    heads: int
    """Attention heads."""
    key_size: int | None = None
    """Channels of a query or key in one head; width / heads if not given."""
    bias: bool = True
    """Whether the linear layers have a bias."""
    dropout: float = 0.0
    """Dropout probability."""

    takes_added: ClassVar[bool] = True
    looks_at_memory: ClassVar[bool] = True
    about: ClassVar[About | None] = About(
        "y = softmax(X Wq (Z Wk)^T / sqrt(C)) Z Wv, Z the other stream", "1908.02265", "T D^2 + S D D' + T S D"
    )

    def check(self) -> None:
        check_heads("CoAttention", self.heads, None, self.dropout, "sqrt")
        check_at_least("CoAttention", "key_size", self.key_size, 1, fix="leave it out")

    def build(self, width: int, *, causal: bool, relative: Relative, memory_width: int | None = None) -> nn.Module:
        same = Cross(heads=self.heads, key_size=self.key_size, bias=self.bias, dropout=self.dropout)
        return CoAttentionModule(same, width, width if memory_width is None else memory_width)


class CoAttentionModule(CrossModule):
    """Cross-attention without a cache."""

    def prepare(
        self, x: Tensor, context: Context, state: CrossKVCache | None, tables: tuple[Tensor, ...]
    ) -> AttentionInputs:
        """Queries from this stream, keys and values from the other."""
        return super().prepare(x, context, None, tables)

    def state(self, batch: int, limit: int | None) -> None:  # type: ignore[override]
        """No state: the other stream changes."""
        return None

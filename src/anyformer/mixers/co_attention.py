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

    `key_size` is channels of one head, width / heads where it is left out. It computes what `Cross` computes; but what
    it looks at is new in every layer and every pass, so that no state keeps it.
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
    """Cross-attention that keeps nothing between passes."""

    def prepare(
        self, x: Tensor, context: Context, state: CrossKVCache | None, tables: tuple[Tensor, ...]
    ) -> AttentionInputs:
        """Queries from here, keys and values from the other stream as it stands now."""
        return super().prepare(x, context, None, tables)

    def state(self, batch: int, limit: int | None) -> None:  # type: ignore[override]
        """Nothing is remembered: the other stream moves."""
        return None

"""Learned queries: a decoder that is asked a fixed number of questions instead of being given tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import EmbeddingTable
from anyformer.core.state import State
from anyformer.errors import UserError
from anyformer.slots import Embed
from anyformer.spec import field


class Queries(Embed):
    """`count` tokens that start at zero; what tells them apart is learned and joins queries and keys in every layer.

    What it is given only says how many rows there are: any tensor with the batch first, an encoder's output say.

    >>> Queries(100).count
    100
    """

    about: ClassVar[About | None] = About("x = 0; q, k of every layer = W (x + E), E learned", "2005.12872", "n D")

    count: int = field(kw_only=False)
    """Number of learned query tokens."""

    def check(self) -> None:
        if self.count < 1:
            raise UserError(f"count {self.count} is below 1", where="Queries", fix="use 100")

    @property
    def adds(self) -> bool:
        return True

    def build(self, width: int) -> nn.Module:
        return QueriesModule(self, width)


class QueriesModule(nn.Module):
    def __init__(self, spec: Queries, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.table = EmbeddingTable(spec.count, width)

    def layout(
        self, like: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """What is known of the queries for each row of `like`."""
        if not isinstance(like, Tensor) or like.dim() < 1:
            raise UserError(f"queries are given {type(like).__name__}", fix="give any tensor with the batch first")
        context = lay_out(like.shape[0], self.spec.count, like.device, mask=mask, positions=positions,
                          documents=documents, segments=segments, state=state)  # fmt: skip
        return replace(context, added=self.table.weight[None])  # (1,T,D)

    def forward(self, like: Tensor, *, context: Context) -> Tensor:
        """Zeros (B,T,D)."""
        return self.table.weight.new_zeros(like.shape[0], *self.table.weight.shape)

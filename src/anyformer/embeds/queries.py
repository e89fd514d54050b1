"""Learned queries: decoder inputs of a fixed number instead of tokens (DETR)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import EmbeddingTable
from anyformer.core.own_init import Starting, constant, values
from anyformer.core.state import State
from anyformer.errors import UserError, check_at_least
from anyformer.positions.sinusoid_grid import cell_middles, grid_sinusoid
from anyformer.slots import Embed
from anyformer.spec import field

SHARPNESS = 5.0  # of the initial attention to the memory: most of its weight is within a tenth of the image


class Queries(Embed):
    """`count` zero tokens with learned embeddings that are added to queries and keys in every layer.

    The input only determines the batch size: any tensor with the batch first, such as an encoder's output. With
    `anchors`, rows and columns of a grid over the image, a query is initialised as the sinusoids of a cell's centre, so
    that it attends to its own cell of `SinusoidGrid` from the first step (as in 2109.07107).

    >>> Queries(100).count
    100
    """

    about: ClassVar[About | None] = About("x = 0; q, k of every layer = W (x + E), E learned", "2005.12872", "n D")

    count: int = field(kw_only=False)
    """Number of learned query tokens."""
    anchors: tuple[int, int] | None = None
    """Rows and columns of the grid over the image that initialises the queries; random if not given."""

    def check(self) -> None:
        check_at_least("Queries", "count", self.count, 1, fix="use 100")
        if self.anchors is not None and self.anchors[0] * self.anchors[1] != self.count:
            raise UserError(f"{self.count} queries do not fill a grid of {self.anchors[0]} x {self.anchors[1]}",
                            where="Queries.anchors", fix="use count = rows * columns")  # fmt: skip

    @property
    def has_layer_positions(self) -> bool:
        return True

    def build(self, width: int) -> nn.Module:
        return QueriesModule(self, width)


class AnchoredTable(EmbeddingTable, Starting):
    """An embedding initialised with the sinusoids of the cells of a grid."""

    def __init__(self, grid: tuple[int, int], width: int) -> None:
        super().__init__(grid[0] * grid[1], width)
        x, y = cell_middles(grid).T
        self.starts["weight"] = values(grid_sinusoid(y, x, width))


class QueriesModule(Starting):
    def __init__(self, spec: Queries, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.table = AnchoredTable(spec.anchors, width) if spec.anchors else EmbeddingTable(spec.count, width)
        self.sharpness: nn.Parameter | None = None
        if spec.anchors:
            self.sharpness = nn.Parameter(torch.empty(1))
            self.starts["sharpness"] = constant(SHARPNESS)

    def layout(
        self, like: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of the queries for the batch of `like`."""
        if not isinstance(like, Tensor) or like.dim() < 1:
            raise UserError(f"queries are given {type(like).__name__}", fix="give any tensor with the batch first")
        context = lay_out(like.shape[0], self.spec.count, like.device, mask=mask, positions=positions,
                          documents=documents, segments=segments, state=state)  # fmt: skip
        return replace(context, added=self.table.weight[None])  # (1,T,D)

    def forward(self, like: Tensor, *, context: Context) -> Tensor:
        """Zeros, or with anchors the memory at these places: (B,T,D)."""
        if self.sharpness is None or context.memory is None or context.memory_added is None:
            return self.table.weight.new_zeros(like.shape[0], *self.table.weight.shape)
        places = context.memory_added  # tables, memory and sharpness may differ in dtype, as in mixed precision
        near = self.sharpness * (self.table.weight.to(places.dtype) @ places.mT)  # (B or 1,T,S)
        if context.memory_mask is not None:
            near = near.masked_fill(~context.memory_mask[:, None], -torch.inf)
        return near.softmax(-1).to(context.memory.dtype) @ context.memory

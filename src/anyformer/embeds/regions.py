"""Regions of an image into tokens: feature vectors of a detector, each multiplied by one matrix (1908.03557)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from anyformer.about import About
from anyformer.core.context import Context, Mask, lay_out
from anyformer.core.linear import EmbeddingTable, LinearLayer
from anyformer.core.state import State
from anyformer.errors import UserError, check_range
from anyformer.slots import Embed


class Regions(Embed):
    """Precomputed region features (B, N, `features`); regions have no order, so they share one position."""

    about: ClassVar[About | None] = About("x_n = W f_n + b + P[0] + S[1]", "1908.03557", "N D F")

    features: int
    """Length of a region's feature vector."""
    positions: int = 0
    """Rows of a position table, of which all regions use the first (VisualBERT); 0: none."""
    segments: int = 0
    """Rows of a segment table, of which regions use the second by default; 0: none."""

    def check(self) -> None:
        check_range("Regions", "features", self.features, 1, fix="give the length of a region's vector")
        check_range("Regions", "positions", self.positions, 0, fix="use 0 for none")
        check_range("Regions", "segments", self.segments, 0, fix="use 0 for none")

    def build(self, width: int) -> nn.Module:
        return RegionsModule(self, width)


class RegionsModule(nn.Module):
    def __init__(self, spec: Regions, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.project = LinearLayer(spec.features, width)
        self.position = EmbeddingTable(spec.positions, width) if spec.positions else None
        self.segment = EmbeddingTable(spec.segments, width) if spec.segments else None

    def layout(
        self, vectors: Tensor, *, mask: Mask | None = None, positions: Tensor | None = None,
        documents: Tensor | None = None, segments: Tensor | None = None, state: State | None = None,
    ) -> Context:  # fmt: skip
        """Build the context of regions (B, N, features)."""
        if not isinstance(vectors, Tensor):
            raise UserError(f"regions are {type(vectors).__name__}", fix="give a tensor (B, N, features)")
        if vectors.dim() != 3 or vectors.shape[2] != self.spec.features or not vectors.is_floating_point():
            raise UserError(f"regions have shape {tuple(vectors.shape)} and type {vectors.dtype}",
                            fix=f"expected (B, N, {self.spec.features}) in floating point")  # fmt: skip
        return lay_out(vectors.shape[0], vectors.shape[1], vectors.device, mask=mask, positions=positions,
                       documents=documents, segments=segments, state=state)  # fmt: skip

    def forward(self, vectors: Tensor, *, context: Context) -> Tensor:
        """Regions (B, N, features) to (B, N, D)."""
        x = self.project(vectors.to(self.project.weight.dtype))
        if self.position is not None:
            x = x + self.position.weight[0]
        if self.segment is None:
            return x
        usual = self.segment.weight[min(1, self.spec.segments - 1)]
        return x + (usual if context.segments is None else self.segment(context.segments))

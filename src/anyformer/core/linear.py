"""Torch's own layers where it matters how they start."""

from __future__ import annotations

from torch import nn


class EmbeddingTable(nn.Embedding):
    """A table of rows that draws no numbers on `meta`, where every network is built before `core/init.py` fills it.

    Torch's own does, and for those numbers that nobody will see it loads the compiler's tables: one to two seconds.
    """

    def reset_parameters(self) -> None:
        """As torch, where there is memory to fill: a part built alone starts with values."""
        if not self.weight.is_meta:
            super().reset_parameters()

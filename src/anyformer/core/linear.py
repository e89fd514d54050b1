"""Torch's own layers where it matters how they start, or by which library a CPU multiplies."""

from __future__ import annotations

from typing import TypeGuard

from torch import Tensor, nn

from anyformer.kernels.onednn import linear


class LinearLayer(nn.Linear):
    """torch's layer, multiplied by the faster of the two libraries that torch has on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a linear layer and no more: neither adapted, quantised nor shared by members."""
    return type(module) in (LinearLayer, nn.Linear)


class EmbeddingTable(nn.Embedding):
    """A table of rows that draws no numbers on `meta`, where every network is built before `core/init.py` fills it.

    Torch's own does, and for those numbers that nobody will see it loads the compiler's tables: one to two seconds.
    """

    def reset_parameters(self) -> None:
        """As torch, where there is memory to fill: a part built alone starts with values."""
        if not self.weight.is_meta:
            super().reset_parameters()

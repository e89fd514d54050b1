"""Variants of torch's layers: a linear layer with a chosen CPU matmul library, an embedding without wasted init."""

from __future__ import annotations

from typing import TypeGuard

from torch import Tensor, nn

from anyformer.kernels.onednn import linear


class LinearLayer(nn.Linear):
    """nn.Linear using the faster of torch's two matmul libraries on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def is_plain_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a plain linear layer: no adapter, not quantised, not shared by ensemble members."""
    return type(module) in (LinearLayer, nn.Linear)


class EmbeddingTable(nn.Embedding):
    """nn.Embedding that draws no random numbers on `meta`, where every network is built before `core/init.py` fills it.

    Torch's own does, and drawing on `meta` imports the compiler: one to two seconds.
    """

    def reset_parameters(self) -> None:
        """As torch, unless on `meta`: a part built by itself is initialised."""
        if not self.weight.is_meta:
            super().reset_parameters()

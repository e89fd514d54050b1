"""Weighing: a mixer whose output is a weighted sum over tokens, so that attention maps can be drawn."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.core.context import Context


class Weighing(nn.Module):
    """Interface of attention-like mixers other than `Attention` and `Cross`: the weights that `attention_maps`
    shows."""

    keeps_keys: ClassVar[bool] = True  # whether its state can still give earlier tokens' weights

    def weights(self, x: Tensor, context: Context, state: Any, tables: tuple[Tensor, ...], rows: slice) -> Tensor:
        """Weights (B,H,t,S) of the given query rows; each row sums to 1, or to 0 if fully masked.

        `state` is what `forward` would receive: the decoding state before this pass.
        """
        raise NotImplementedError

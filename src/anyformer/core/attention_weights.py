"""Weighing: a mixer whose answer can be written as weights over the tokens it looked at, so that maps can be drawn."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from anyformer.core.context import Context


class Weighing(nn.Module):
    """Attention-like mixers beside `Attention` and `Cross`: what `attention_maps` shows of them."""

    keeps_keys: ClassVar[bool] = True  # whether its state still has what each earlier token's weight is made of

    def weights(self, x: Tensor, context: Context, state: Any, tables: tuple[Tensor, ...], rows: slice) -> Tensor:
        """(B,H,t,S) for the picked queries; each row sums to 1 or, where nothing may be seen, to 0.

        The state is as `forward` would find it: what is held of earlier tokens.
        """
        raise NotImplementedError

"""No relative positions: attention is permutation-equivariant."""

from typing import ClassVar

from torch import nn

from anyformer.about import About
from anyformer.slots import Relative


class NoRelative(Relative):
    """No rotation and no bias."""

    about: ClassVar[About | None] = About("score = q_i . k_j", "-", "0")

    def build(self, heads: int, channels: int, value_channels: int, causal: bool) -> nn.Module | None:
        return None
